"""DUNET (Liao et al. 2018): the U-Net that takes adversarial and Gaussian noise out of an image."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DOWN = ((64, 2), (128, 3), (256, 3), (256, 3), (256, 3))  # width, blocks; every width after the first halves the size
UP = ((256, 3), (256, 3), (128, 3), (64, 2))  # each joins the stage of the same size on the way down


class DUNet(nn.Module):
    """images (N, C, H, W) -> images of the same shape: the input plus a learned residual, not clamped.

    Works for any H and W. `width` scales every layer's channels; at 1.0 with three channels it has 11,033,984 parameters.
    """

    def __init__(self, channels: int = 3, width: float = 1.0) -> None:
        super().__init__()
        self.channels, self.width = channels, width
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before, skips = channels, []
        for stage, (wide, blocks) in enumerate(DOWN):
            after = max(1, round(wide * width))
            self.down.append(_stage(before, after, blocks, stride=1 if stage == 0 else 2))
            before = after
            skips.append(after)
        for (wide, blocks), skip in zip(UP, reversed(skips[:-1]), strict=True):
            after = max(1, round(wide * width))
            self.up.append(_stage(before + skip, after, blocks, stride=1))
            before = after
        self.residual = nn.Conv2d(before, channels, 1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        seen, x = [], images
        for stage in self.down:
            x = stage(x)
            seen.append(x)
        for stage, skip in zip(self.up, reversed(seen[:-1]), strict=True):
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = stage(torch.cat([x, skip], 1))
        return images + self.residual(x)


def _stage(before: int, after: int, blocks: int, stride: int) -> nn.Sequential:
    """`blocks` times convolution, batch norm, ReLU; the first changes width and size."""
    layers: list[nn.Module] = []
    for block in range(blocks):
        layers += [
            nn.Conv2d(before if block == 0 else after, after, 3, stride if block == 0 else 1, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)

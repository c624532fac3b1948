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
            x = stage(torch.cat([enlarged(x, skip.shape[2], skip.shape[3]), skip], 1))
        return images + self.residual(x)


def enlarged(x: Tensor, height: int, width: int) -> Tensor:
    """Bilinear up-sampling to a size. Compiled, the doubling is written out: torch's own becomes scattered additions in the
    backward pass there, a seventh of an attack's time on an H200. Uncompiled, torch's own is the faster one.

    It is written out channels last, as the skips are in memory. Their join would not be so otherwise: it would be stored in
    both layouts for the convolution that reads it, and the gradient at that convolution copied there and back.
    """
    if not (torch.compiler.is_compiling() and height == 2 * x.shape[2] and width == 2 * x.shape[3]):
        return F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)
    rows = _doubled(x.permute(0, 2, 3, 1).flatten(2))
    columns = _doubled(rows.reshape(-1, x.shape[3], x.shape[1]))
    return columns.reshape(-1, height, width, x.shape[1]).permute(0, 3, 1, 2)


def _doubled(x: Tensor) -> Tensor:
    """Twice as long in the middle of three dimensions: each new position lies a quarter away from an old one, at the edges
    on it. Of four dimensions inductor would take the second for channels, and move it last in memory."""
    before = torch.cat([x[:, :1], x[:, :-1]], 1)
    after = torch.cat([x[:, 1:], x[:, -1:]], 1)
    return torch.stack([0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after], 2).flatten(1, 2)


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

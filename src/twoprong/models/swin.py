"""Swin Transformer for small images: attention inside windows, and inside shifted windows in every second block.

Source: Liu, Lin, Cao, Hu, Wei, Zhang, Lin, Guo, "Swin Transformer: Hierarchical Vision Transformer using Shifted
Windows" (2021). For 32x32 images the patch is 2 (not 4) and the window 4 (not 7). No stochastic depth. Between layers
tokens are laid out (N, side, side, dim); masks and offsets are computed from the side of the input that comes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from twoprong.errors import InputError
from twoprong.models.featured import Featured
from twoprong.models.normalise import Normalise


def to_windows(tokens: Tensor, size: int) -> Tensor:
    """(N, side, side, dim) to (N, windows, size * size, dim), both orders row by row."""
    batch, side, _, dim = tokens.shape
    count = side // size
    grid = tokens.reshape(batch, count, size, count, size, dim).transpose(2, 3)
    return grid.reshape(batch, count * count, size * size, dim)


def from_windows(windows: Tensor, side: int, size: int) -> Tensor:
    """The inverse of `to_windows`."""
    batch, _, _, dim = windows.shape
    count = side // size
    return windows.reshape(batch, count, count, size, size, dim).transpose(2, 3).reshape(batch, side, side, dim)


def shift_mask(side: int, size: int, shift: int, device: torch.device) -> Tensor:
    """(windows, size², size²), true where a token may attend to another after rolling the image by -shift both ways.

    Rolling brings the first `shift` rows and columns round to the far edge, beside tokens that are no neighbours of
    theirs; inside a window only tokens that were carried round in the same directions belong together.
    """
    wrapped = (torch.arange(side, device=device) >= side - shift).long()
    region = to_windows((2 * wrapped[:, None] + wrapped).reshape(1, side, side, 1), size)[0, :, :, 0]
    return region[:, :, None] == region[:, None, :]


class WindowAttention(nn.Module):
    """softmax(q kᵀ / √d + B) v within each window, B a learned bias per head and relative offset (section 3.2).

    The table holds the offsets of a full window; a smaller window (small input) uses the middle of it.
    """

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.project = nn.Linear(dim, dim)
        self.bias_table = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))

    def forward(self, windows: Tensor, size: int, mask: Tensor | None) -> Tensor:
        """`windows` is (N, windows, size², dim); `mask`, if any, what `shift_mask` returns."""
        batch, count, area, dim = windows.shape
        qkv = self.qkv(windows).reshape(batch, count, area, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(3, 0, 1, 4, 2, 5)  # each (N, windows, heads, size², dim / heads)
        scores = query @ key.transpose(-2, -1) * (dim // self.heads) ** -0.5 + self._bias(size)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -torch.inf)  # a token always sees itself: no row is empty
        mixed = scores.softmax(dim=-1) @ value
        return self.project(mixed.transpose(2, 3).reshape(batch, count, area, dim))

    def _bias(self, size: int) -> Tensor:
        steps = torch.arange(size, device=self.bias_table.device)
        offset = steps[:, None] - steps + self.window - 1
        index = offset[:, None, :, None] * (2 * self.window - 1) + offset[None, :, None, :]
        return self.bias_table[index.reshape(size * size, size * size)].permute(2, 0, 1)


class SwinBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). A window that covers the whole input is not shifted."""

    def __init__(self, dim: int, heads: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.window = window
        self.shifted = shifted
        self.norm1 = nn.LayerNorm(dim)
        self.attention = WindowAttention(dim, heads, window)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def _attend(self, x: Tensor) -> Tensor:
        side = x.shape[1]
        size = min(self.window, side)
        if not self.shifted or size == side:
            return from_windows(self.attention(to_windows(x, size), size, None), side, size)
        shift = size // 2
        mask = shift_mask(side, size, shift, x.device)
        rolled = x.roll((-shift, -shift), dims=(1, 2))
        mixed = from_windows(self.attention(to_windows(rolled, size), size, mask), side, size)
        return mixed.roll((shift, shift), dims=(1, 2))


class PatchMerging(nn.Module):
    """Each 2x2 neighbourhood of tokens becomes one token of twice the width."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduce = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, side, _, dim = x.shape
        return self.reduce(self.norm(to_windows(x, 2).reshape(batch, side // 2, side // 2, 4 * dim)))


class Swin(Featured):
    """Square images (N, channels, side, side) in [0, 1] to logits (N, classes).

    Each stage after the first halves the resolution and doubles the width; the mean over the last tokens is the
    features. Raises InputError for images that do not divide into whole windows at every stage.
    """

    def __init__(
        self,
        classes: int,
        channels: int,
        *,
        patch: int = 2,
        dim: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        heads: Sequence[int] = (3, 6, 12, 24),
        window: int = 4,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.window = window
        self.stages = len(depths)
        self.normalise = Normalise(channels)
        self.embed = nn.Conv2d(channels, dim, patch, stride=patch)
        self.embed_norm = nn.LayerNorm(dim)
        layers: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            if stage > 0:
                layers.append(PatchMerging(dim))
                dim *= 2
            layers += [SwinBlock(dim, heads[stage], window, shifted=position % 2 == 1) for position in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.apply(_initialise)

    def features(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        if height != width or not self.accepts(width):
            sides = ", ".join(str(side) for side in range(1, 257) if self.accepts(side))
            raise InputError(
                f"images: this Swin Transformer expected square images with a side of {sides}, ..., got "
                f"{height}x{width}; resize or pad them, or choose a convolutional model"
            )
        tokens = self.embed_norm(self.embed(self.normalise(images)).permute(0, 2, 3, 1))
        return self.norm(self.layers(tokens)).mean(dim=(1, 2))

    def accepts(self, side: int) -> bool:
        """Whether images of this side divide into patches, and at every stage into whole windows."""
        coarsest = self.patch * 2 ** (self.stages - 1)
        resolutions = [side // self.patch // 2**stage for stage in range(self.stages)]
        return side >= coarsest and side % coarsest == 0 and all(r % min(self.window, r) == 0 for r in resolutions)


def swin_t(classes: int, channels: int) -> Swin:
    """Swin-T for sides of 16, 32, 64, ...: 27,507,028 parameters for 10 classes and 3 channels."""
    return Swin(classes, channels)


def _initialise(module: nn.Module) -> None:
    # Small normal weights, as in the paper's training: there is no batch norm here to forgive a wrong scale.
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, WindowAttention):
        nn.init.trunc_normal_(module.bias_table, std=0.02)

"""Normalisation as the first layer of every classifier, so that callers and attacks work on images in [0, 1]."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalise(nn.Module):
    """(images - mean) / std, per channel. The constants are buffers: they follow `.to(device)` and are saved."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int, mean: float | Sequence[float] = 0.5, std: float | Sequence[float] = 0.25) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(value).float().view(-1, 1, 1).expand(channels, 1, 1).clone())

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

"""Normalisation as the first layer of every classifier, so that callers and attacks work on images in [0, 1]."""

import torch
from torch import Tensor, nn


class Normalise(nn.Module):
    """(images - mean) / std, per channel. The constants are buffers: they follow `.to(device)` and are saved."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int, mean: float = 0.5, std: float = 0.25) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((channels, 1, 1), mean))
        self.register_buffer("std", torch.full((channels, 1, 1), std))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

"""Weights rounded to eight bits, which a bundle stores in a quarter of the room."""

import torch
from torch import nn

from twoprong.storage import PACKINGS


@torch.no_grad()
def compact(network: nn.Module) -> nn.Module:
    """The network with its weights rounded to eight bits and all other numbers (biases, batch norm) to half precision.

    In place. Fit around what is left: kernels and thresholds depend on every bit.
    """
    for value in network.state_dict().values():
        if value.is_floating_point():
            packing = PACKINGS["int8" if value.ndim > 1 else "float16"]
            value.copy_(packing.unpack(packing.pack(value)))
    return network

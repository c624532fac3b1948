"""In which precision networks compute. Kernels, statistics and losses are float32 in any case."""

from typing import Literal

import torch
from torch import Tensor

from twoprong.models.fast import Compiler, compiled

Precision = Literal["fp32", "bf16"]


def computing(precision: Precision, device: torch.device) -> torch.autocast:
    """A region in which networks compute in this precision, their weights staying what they are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def compiler_for(precision: Precision, images: Tensor) -> Compiler | None:
    """A compiler where it pays: in bf16 on a GPU, for images of 32 pixels and more; else its minute of warm-up is lost.

    (On 8x8 images its backward pass of a convolution also fails an assertion on memory layout, seen with torch 2.11.)
    """
    return compiled if precision == "bf16" and images.is_cuda and min(images.shape[2:]) >= 32 else None

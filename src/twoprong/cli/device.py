"""The one place that chooses a device and a precision."""

from enum import StrEnum

import torch

from twoprong.errors import InputError


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(StrEnum):
    fp32 = "fp32"
    bf16 = "bf16"


def computing(precision: Precision, device: torch.device) -> torch.autocast:
    """A region in which networks run in the wished precision; kernels and statistics stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision is Precision.bf16)


def choose(device: Device) -> torch.device:
    """The device asked for; `auto` is the GPU where there is one. Raises InputError for a GPU that is not there."""
    if device is Device.cuda and not torch.cuda.is_available():
        raise InputError("--device cuda: no CUDA device is visible; use --device cpu, or auto")
    if device is Device.auto:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device.value)

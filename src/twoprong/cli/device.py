"""The one place that chooses a device and a precision."""

import torch

from twoprong.cli.arguments.shared import Device, Precision
from twoprong.errors import InputError
from twoprong.malloc import keep_freed_memory
from twoprong.models.precision import Precision as ComputePrecision


def resolve(precision: Precision, device: torch.device) -> ComputePrecision:
    """The precision asked for; `auto` is bf16 on a GPU and fp32 elsewhere."""
    if precision is Precision.auto:
        return "bf16" if device.type == "cuda" else "fp32"
    return "bf16" if precision is Precision.bf16 else "fp32"


def choose(device: Device) -> torch.device:
    """The device asked for; `auto` is the GPU where there is one. Raises InputError for a GPU that is not there."""
    if device is Device.cuda and not torch.cuda.is_available():
        raise InputError("--device cuda: no CUDA device is visible; use --device cpu, or auto")
    if device is Device.auto:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device.value)


def choose_and_tune(device: Device) -> torch.device:
    """As `choose`; also tunes this process for computing there."""
    chosen = choose(device)
    torch.backends.cudnn.benchmark = True  # batches have one shape: trying convolution algorithms once pays
    if chosen.type == "cpu":
        keep_freed_memory()
    return chosen

"""The memory layout in which convolutions are fastest."""

from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def channels_last(module: Module) -> Module:
    """The module with its weights laid out channels last; its values, and what it accepts, stay the same."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's types

"""Eval mode for a while: batch norm and dropout as in deployment, and every module put back afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def modules_of(model: object) -> list[nn.Module]:
    """Every torch module behind a model: whatever its `modules()` lists; none for a plain function."""
    listed = getattr(model, "modules", None)
    return list(listed()) if callable(listed) else []


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Every module behind a model in eval mode for a block, and each put back into its own mode afterwards."""
    modes = [(module, module.training) for module in modules_of(model)]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode

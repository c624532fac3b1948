"""Tensors that are loaded into a detector: checked, and given back where they are refused. Hooks, so plain functions."""

from typing import Protocol

import torch
from torch import Tensor

from twoprong.detect.kernel import DeepKernel
from twoprong.errors import InputError


class Checked(Protocol):
    """A detector, as far as its loading goes."""

    before: dict[str, Tensor]
    kernel: DeepKernel
    reference_features: Tensor

    def state_dict(self) -> dict[str, Tensor]: ...

    def check(self) -> None: ...


def remember(detector: Checked, *_: object) -> None:
    detector.before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}


def accept(detector: Checked, _: object) -> None:
    """Check what was loaded. Raises InputError for what cannot be used, with everything as it was before."""
    before, detector.before = detector.before, {}
    detector.kernel.centred_at(detector.reference_features)
    try:
        detector.check()
    except InputError:
        with torch.no_grad():
            for name, tensor in detector.state_dict().items():
                tensor.copy_(before[name])
        detector.kernel.centred_at(detector.reference_features)
        raise

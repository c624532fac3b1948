"""What a sanity check says: passed, failed, not converged or not applicable, and why."""

from collections.abc import Sequence
from typing import Any

import torch

from twoprong.results.evaluation import Finding, Status

NEARLY_ZERO = 0.05  # "accuracy ≈ 0"
POINT = 0.01
FAR = 0.05  # doubling an attack's effort may lower the accuracy by this much before the run is called unreliable
LITTLE = 0.10  # noise of the attack's size may cost this much accuracy, or
LESS = 0.2  # this share of what the attacks cost: a natural classifier of photographs does not like noise either


def finding(name: str, question: str, status: Status | bool, detail: str, **values: Any) -> Finding:
    """A finding; of a question that is answered by yes or no, True is passed."""
    if isinstance(status, bool):
        status = "passed" if status else "failed"
    return Finding(name=name, question=question, status=status, detail=detail, values=values)


def not_memory(error: RuntimeError) -> None:
    """An attack that runs out of memory says nothing about gradients."""
    if isinstance(error, torch.OutOfMemoryError):
        raise error


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def mean_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    average, count = mean(values), len(values)
    return average, (sum((value - average) ** 2 for value in values) / (count * max(1, count - 1))) ** 0.5

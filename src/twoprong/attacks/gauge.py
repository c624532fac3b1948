"""The test as attacks see it: how far a batch is from being flagged, and how to bring it to the wanted side."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twoprong.attacks.base import Attack
from twoprong.attacks.target import Target

AIM = 0.9  # stay below this share of the threshold, so that rounding does not flag the batch
HALVINGS = 6  # of the way back to the clean images
ABOVE = 0.1  # so far above the threshold, in units of its scale, rounding does not let the batch pass
PUSHES = 20  # steps, of a twentieth of the budget each, in which a batch is to become conspicuous


class Gauge(NamedTuple):
    """How far a statistic is above where it should be, in units of the threshold (or of the clean batch's statistic)."""

    threshold: float
    scale: float

    @classmethod
    def of(cls, target: Target, images: Tensor) -> "Gauge":
        threshold = target.threshold(len(images))
        if threshold == float("inf"):
            return cls(threshold, 1.0)
        with torch.no_grad():
            clean = abs(value_of(target.statistic(images)))
        return cls(threshold, max(abs(threshold), clean if math.isfinite(clean) else 0.0, 1e-6))

    def excess(self, statistic: "float | Tensor") -> Any:
        """Positive when the statistic is above the threshold less a tenth of the scale."""
        return (statistic - self.threshold) / self.scale + (1 - AIM)


def value_of(statistic: Tensor) -> float:
    """The statistic as a number: infinite where it is not finite, because such a batch is flagged."""
    value = statistic.item()
    return value if math.isfinite(value) else math.inf


def statistic_gradient(target: Target, images: Tensor) -> tuple[float, Tensor]:
    """The statistic and its gradient in the images."""
    with torch.enable_grad():
        leaf = images.detach().requires_grad_()
        statistic = target.statistic(leaf)
        return value_of(statistic), torch.autograd.grad(statistic, leaf)[0]


@torch.no_grad()
def drawn_back(target: Target, images: Tensor, found: Tensor, gauge: Gauge) -> Tensor:
    """An attacked batch so far back towards the clean one that it passes the test, by bisection.

    It stays a tenth below the threshold where the clean batch does. Where that is flagged itself, it is what comes back.
    """
    room = 0.0 if gauge.excess(value_of(target.statistic(images))) < 0 else 1 - AIM
    passing, flagged = 0.0, 1.0
    for _ in range(HALVINGS):
        share = (passing + flagged) / 2
        if gauge.excess(value_of(target.statistic(images + share * (found - images)))) < room:
            passing = share
        else:
            flagged = share
    return images + passing * (found - images)


def raised(attack: Attack, target: Target, images: Tensor, found: Tensor, gauge: Gauge) -> Tensor:
    """An attacked batch with its statistic raised in small steps until it is clearly flagged; itself where it is."""
    for _ in range(PUSHES if gauge.threshold < float("inf") else 0):
        statistic, slope = statistic_gradient(target, found)
        if (statistic - gauge.threshold) / gauge.scale > ABOVE:
            break
        found = attack.move(found, slope, attack.eps / PUSHES, images)
    return found


@torch.no_grad()
def most_hidden(target: Target, images: Tensor, hidden: Tensor, cost: Tensor) -> Tensor:
    """The batch with as many images replaced by their `hidden` versions as the test lets pass, the cheapest first.

    An infinite cost keeps an image out. The number is found by bisection: the statistic rises with it, nearly always.
    """
    order = cost.argsort()[: int(cost.isfinite().sum())]
    threshold = target.threshold(len(images))

    def with_best(count: int) -> Tensor:
        batch = images.clone()
        batch[order[:count]] = hidden[order[:count]]
        return batch

    def passes(count: int) -> bool:
        return value_of(target.statistic(with_best(count))) < threshold

    low, high = 0, len(order)
    if passes(high):
        return with_best(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return with_best(low)

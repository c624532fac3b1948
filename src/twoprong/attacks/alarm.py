"""`alarm`: have the batch flagged, whatever the labels. On a few slots (`Partial`) this is how to disturb the others.

The only way in which one image can touch another's outcome is the route that their batch takes, so forcing the route is
all the harm that the owner of some slots can do to the owners of the rest.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack
from twoprong.attacks.gauge import Gauge, statistic_gradient
from twoprong.attacks.target import Target
from twoprong.config import Count, NotNegative

CLEAR = 0.5  # this far above the threshold, in units of its scale, the batch is flagged beyond doubt


@dataclass(frozen=True, kw_only=True)
class Alarm(Attack):
    """x ← Π(x + step·direction(∇ statistic)) from a random start; the batch with the highest statistic is kept.

    It stops as soon as the statistic is clearly above the threshold. Where nothing is tested it is a random perturbation.
    """

    steps: Count = 20
    step: NotNegative | None = None
    restarts: Count = 1

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        gauge = Gauge.of(target, images)
        loudest, highest = images, -torch.inf
        for _ in range(self.restarts):
            x = self.start(images, True, generator)
            for last in [*[False] * self.steps, True]:
                statistic, gradient = statistic_gradient(target, x)
                if statistic > highest:
                    loudest, highest = x, statistic
                if (highest - gauge.threshold) / gauge.scale > CLEAR:
                    return loudest
                if not last:
                    x = self.move(x, gradient, step, images)
        return loudest

"""`route`: through noise, denoiser and classifier, which is where a flagged batch goes."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.gauge import Gauge, raised
from twoprong.attacks.losses import LOSSES, mean_margin
from twoprong.attacks.pgd import PGD
from twoprong.attacks.target import Target
from twoprong.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RouteAttack(Attack):
    """PGD+EOT on the denoiser's route as if there were no test, once per loss (CE, margin, DLR).

    What the test would let pass never meets the denoiser: a batch that is not clearly flagged is also tried with its
    statistic raised until it is. The batch that does best when deployed is kept.
    """

    steps: int = 40
    step: float | None = None
    restarts: int = 1
    draws: int = 8

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        climber = PGD(
            eps=self.eps, norm=self.norm, steps=self.steps, step=self.step, restarts=self.restarts, draws=self.draws
        )
        best = Best(target, images)
        try:
            gauge = Gauge.of(target, images)
        except InputError:  # too few to be tested
            gauge = Gauge(float("inf"), 1.0)
        for loss in LOSSES:
            quiet = replace(climber, loss=loss).climb(target, images, labels, generator, route="flagged").images
            loud = raised(self, target, images, quiet, gauge)
            for found in [quiet] if loud is quiet else [quiet, loud]:
                with torch.no_grad():
                    best.offer(found, mean_margin(target.logits(found, None, self.draws, generator), labels))
        return best.images

"""`route`: through noise, denoiser and classifier as if there were no detector."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.losses import LOSSES, mean_margin
from twoprong.attacks.pgd import PGD
from twoprong.attacks.target import Target


@dataclass(frozen=True, kw_only=True)
class RouteAttack(Attack):
    """PGD+EOT on the denoiser's route, once per loss (CE, margin, DLR); the batch that does best when deployed is kept."""

    steps: int = 40
    step: float | None = None
    restarts: int = 1
    draws: int = 8

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        climber = PGD(
            eps=self.eps, norm=self.norm, steps=self.steps, step=self.step, restarts=self.restarts, draws=self.draws
        )
        best = Best(target, images)
        for loss in LOSSES:
            found = replace(climber, loss=loss).climb(target, images, labels, generator, route="denoise").images
            with torch.no_grad():
                best.offer(found, mean_margin(target.logits(found, None, self.draws, generator), labels))
        return best.images

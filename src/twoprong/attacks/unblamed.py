"""`unblamed`: be misclassified in a flagged batch, and let others take the blame."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.losses import margin, mean_margin
from twoprong.attacks.target import Target, Transparent, transparent
from twoprong.config import Count, NotNegative, Numbers


@dataclass(frozen=True, kw_only=True)
class Unblamed(Attack):
    """Whoever is not blamed takes the passing route, even in a flagged batch. This attack keeps below the limit of blame.

    Every image ascends min(margin, κ) - λ·relu(suspicion + slack) - λ·witness by itself, for every λ of `penalties`: the
    suspicion is how far its score is above the limit, and the images with the largest witness are blamed next. For every λ
    three batches are tried: the last iterates, the least suspicious misclassified version of every image, and these only
    where they are below the limit, the rest clean. The batch that does best when deployed is kept.
    """

    steps: Count = 40
    step: NotNegative | None = None
    kappa: NotNegative = 0.5
    slack: NotNegative = 0.5
    penalties: Numbers = (0.1, 1.0, 10.0, 100.0)
    draws: Count = 8

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        inside, best = transparent(target), Best(target, images)
        for penalty in self.penalties:
            for found in self._hide(inside, images, labels, penalty, generator):
                with torch.no_grad():
                    best.offer(found, mean_margin(target.logits(found, None, self.draws, generator), labels))
        return best.images

    def _hide(
        self, target: Transparent, images: Tensor, labels: Tensor, penalty: float, generator: torch.Generator | None
    ) -> list[Tensor]:
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        x = self.start(images, True, generator)
        quiet, least = images, torch.full_like(images[:, 0, 0, 0], torch.inf)
        for last in [*[False] * self.steps, True]:
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                gap = margin(target.logits(leaf, "passing")[0], labels)
                suspicion = target.suspicion(leaf)
                cost = (suspicion + self.slack).relu() + target.witness(leaf, images)
                (gradient,) = torch.autograd.grad((gap.clamp_max(self.kappa) - penalty * cost).sum(), leaf)
            fooled = torch.where(gap > 0, suspicion, torch.inf).detach()
            better = fooled < least
            quiet = torch.where(better[:, None, None, None], x, quiet)
            least = torch.where(better, fooled, least)
            if not last:
                x = self.move(x, gradient, step, images)
        return [x, quiet, torch.where((least < 0)[:, None, None, None], quiet, images)]

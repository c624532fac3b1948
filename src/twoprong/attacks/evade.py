"""`evade`: be misclassified on the clean route, and pass the test."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best, loss_gradient
from twoprong.attacks.gauge import Gauge, drawn_back, statistic_gradient, value_of
from twoprong.attacks.losses import LOSSES, Loss, mean_margin
from twoprong.attacks.target import Target
from twoprong.config import Count, NotNegative, Numbers


@dataclass(frozen=True, kw_only=True)
class Evade(Attack):
    """Ascend the loss of the clean route with the statistic held below the threshold t; the best unflagged iterate is kept,
    or the last one drawn back towards the clean images until it passes.

    Three ways, each with CE and margin: a Lagrangian, loss - λ·relu((statistic - 0.9·t)/t), for every λ of `penalties`;
    the same with a negative λ, which asks to be flagged and ascends the loss of the denoiser's route instead; and selective
    gradients: below the threshold ascend the loss orthogonally to the statistic, above it descend the statistic
    orthogonally to the loss. All are tried, and the batch that does best when deployed is returned.
    """

    steps: Count = 40
    step: NotNegative | None = None
    restarts: Count = 1
    draws: Count = 8
    penalties: Numbers = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, -1e-1, -1e1)

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        best = Best(target, images)
        for loss in (LOSSES["margin"], LOSSES["ce"]):
            for penalty in (*self.penalties, None):
                for _ in range(self.restarts):
                    found = self._try(target, images, labels, loss, penalty, generator)
                    with torch.no_grad():
                        best.offer(found, mean_margin(target.logits(found, None, self.draws, generator), labels))
                    if bool((best.score > 0).all()):
                        return best.images
        return best.images

    def _try(
        self,
        target: Target,
        images: Tensor,
        labels: Tensor,
        loss: Loss,
        penalty: float | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        """One run; `penalty` None is the selective form. The best iterate on the wanted side of the threshold."""
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        gauge = Gauge.of(target, images)
        hide = penalty is None or penalty > 0
        best, x = Best(target, images), self.start(images, True, generator)
        for _ in range(self.steps):
            gradient, score, _ = loss_gradient(
                target, x, labels, loss, generator, "passing" if hide else "flagged", 1 if hide else self.draws
            )
            statistic, slope = statistic_gradient(target, x)
            if (statistic < gauge.threshold) == hide:
                best.offer(x, score)
            gradient, excess = gradient / len(images), gauge.excess(statistic)
            if penalty is None:
                gradient = _orthogonal(gradient, slope, excess < 0)
            elif excess > 0 or not hide:
                gradient = gradient - penalty * slope / gauge.scale
            x = self.move(x, gradient, step, images)
        with torch.no_grad():
            passes = value_of(target.statistic(x)) < gauge.threshold
            if hide and not passes and not best.score.isfinite().any():
                x = drawn_back(target, images, x, gauge)
                passes = value_of(target.statistic(x)) < gauge.threshold
            if passes == hide:
                logits = target.logits(x, "passing" if hide else "flagged", self.draws, generator)
                best.offer(x, mean_margin(logits, labels))
        return best.images


def _orthogonal(loss: Tensor, statistic: Tensor, passing: bool) -> Tensor:
    """Selective gradients: up the loss without touching the statistic, or down the statistic without touching the loss."""
    keep, avoid = (loss, statistic) if passing else (-statistic, loss)
    share = (keep * avoid).sum() / avoid.square().sum().clamp_min(1e-30)
    return keep - share * avoid

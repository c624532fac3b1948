"""`evade`: be misclassified on the clean route, and pass the test."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best, loss_gradient
from twoprong.attacks.losses import LOSSES, Loss, mean_margin
from twoprong.attacks.target import Target

AIM = 0.9  # stay below this share of the threshold, so that rounding does not flag the batch


@dataclass(frozen=True, kw_only=True)
class Evade(Attack):
    """Ascend the loss of the clean route with the statistic held below the threshold t; the best unflagged iterate is kept.

    Three ways, each with CE and margin: a Lagrangian, loss - λ·relu((statistic - 0.9·t)/t), for every λ of `penalties`;
    the same with a negative λ, which asks to be flagged and ascends the loss of the denoiser's route instead; and selective
    gradients: below the threshold ascend the loss orthogonally to the statistic, above it descend the statistic
    orthogonally to the loss. All are tried, and the batch that does best when deployed is returned.
    """

    steps: int = 40
    step: float | None = None
    restarts: int = 1
    draws: int = 8
    penalties: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, -1e-1, -1e1)

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
                target, x, labels, loss, generator, "clean" if hide else "denoise", 1 if hide else self.draws
            )
            statistic, slope = _statistic(target, x)
            if (statistic < gauge.threshold) == hide:
                best.offer(x, score)
            gradient, excess = gradient / len(images), gauge.excess(statistic)
            if penalty is None:
                gradient = _orthogonal(gradient, slope, excess < 0)
            elif excess > 0 or not hide:
                gradient = gradient - penalty * slope / gauge.scale
            x = self.move(x, gradient, step, images)
        with torch.no_grad():
            if (target.statistic(x).item() < gauge.threshold) == hide:
                logits = target.logits(x, "clean" if hide else "denoise", self.draws, generator)
                best.offer(x, mean_margin(logits, labels))
        return best.images


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
            return cls(threshold, max(abs(threshold), abs(target.statistic(images).item()), 1e-6))

    def excess(self, statistic: "float | Tensor") -> Any:
        """Positive when the statistic is above the threshold less a tenth of the scale."""
        return (statistic - self.threshold) / self.scale + (1 - AIM)


def _statistic(target: Target, images: Tensor) -> tuple[float, Tensor]:
    """The statistic and its gradient in the images."""
    with torch.enable_grad():
        leaf = images.detach().requires_grad_()
        statistic = target.statistic(leaf)
        return statistic.item(), torch.autograd.grad(statistic, leaf)[0]


def _orthogonal(loss: Tensor, statistic: Tensor, passing: bool) -> Tensor:
    """Selective gradients: up the loss without touching the statistic, or down the statistic without touching the loss."""
    keep, avoid = (loss, statistic) if passing else (-statistic, loss)
    share = (keep * avoid).sum() / avoid.square().sum().clamp_min(1e-30)
    return keep - share * avoid

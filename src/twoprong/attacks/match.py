"""`match`: features that look like the reference's, with the classes swapped, which a marginal test cannot see."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.gauge import Gauge, drawn_back, value_of
from twoprong.attacks.losses import margin, mean_margin
from twoprong.attacks.target import Target, Transparent, transparent
from twoprong.config import Count, NotNegative, Number


@dataclass(frozen=True, kw_only=True)
class Match(Attack):
    """Classes are paired, and every image is moved to the features of a clean image of the other class of its pair.

    It ascends w·min(margin, κ) - |φ(x) - φ(r)|² / d² - λ·relu((statistic - 0.9·t)/t), where r is an image that is
    classified into the wanted class (from the reference; from the batch where there is none) and d the first distance, once
    for every (w, λ) of `weights`. The best unflagged iterate of each run is kept; where none passes, the last one, and that
    drawn back towards the clean images until it does.
    """

    steps: Count = 60
    step: NotNegative | None = None
    draws: Count = 8
    kappa: NotNegative = 1.0
    weights: tuple[tuple[Number, Number], ...] = ((0.0, 0.0), (0.3, 1.0), (3.0, 1.0), (3.0, 10.0))

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        inside = transparent(target)
        wanted = self._models(inside, images, labels, generator)
        best, gauge = Best(target, images), Gauge.of(target, images)
        for weight, penalty in self.weights:
            found, passes = self._run(inside, images, labels, wanted, weight, penalty, gauge, generator)
            for one in [found] if passes else [found, drawn_back(target, images, found, gauge)]:
                with torch.no_grad():
                    best.offer(one, mean_margin(target.logits(one, None, self.draws, generator), labels))
        return best.images

    def _run(
        self,
        target: Transparent,
        images: Tensor,
        labels: Tensor,
        wanted: Tensor,
        weight: float,
        penalty: float,
        gauge: Gauge,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, bool]:
        """One run; whether what it found passes the test."""
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        unflagged, x = Best(target, images), self.start(images, True, generator)
        first: Tensor | None = None
        for _ in range(self.steps):
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                distance = (target.embed(leaf) - wanted).square().sum(1)
                first = distance.detach().clamp_min(1e-12) if first is None else first
                gap = margin(target.logits(leaf, "passing")[0], labels)
                statistic = target.statistic(leaf)
                excess = gauge.excess(statistic).clamp_min(0)
                objective = (weight * gap.clamp_max(self.kappa) - distance / first).mean() - penalty * excess
                (gradient,) = torch.autograd.grad(objective, leaf)
            if value_of(statistic) < gauge.threshold:
                unflagged.offer(x, gap.detach())
            x = self.move(x, gradient, step, images)
        with torch.no_grad():
            if value_of(target.statistic(x)) < gauge.threshold:
                unflagged.offer(x, margin(target.logits(x, "passing")[0], labels))
        passes = bool(unflagged.score.isfinite().all())
        return unflagged.images if passes else x, passes

    @torch.no_grad()
    def _models(self, target: Transparent, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """For every image the features of a clean image of the class paired with its own (0 with 1, 2 with 3, …)."""
        pool = target.reference_images()
        pool = pool if len(pool) else images
        logits, features = target.logits(pool, "passing")[0], target.embed(pool)
        classes = logits.shape[1]
        swapped = labels ^ 1  # an odd class out takes the one before it
        swapped = torch.where(swapped < classes, swapped, labels - 1)
        # The likeliest member of the class comes first; a random choice among members keeps their spread.
        fits = logits.argmax(1)[None, :] == swapped[:, None]
        chance = torch.where(fits, torch.rand(fits.shape, generator=generator, device=fits.device), -1.0)
        none = ~fits.any(1)
        choice = torch.where(none, logits[:, swapped].argmax(0), chance.argmax(1))
        return features[choice]

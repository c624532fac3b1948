"""`match`: features that look like the reference's, with the classes swapped, which a marginal test cannot see."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.losses import margin, mean_margin
from twoprong.attacks.target import Target, Transparent, transparent


@dataclass(frozen=True, kw_only=True)
class Match(Attack):
    """Classes are paired, and every image is moved to the features of a clean image of the other class of its pair.

    It ascends -|φ(x) - φ(r)|² / d² + w·min(margin, κ), r being an image that the classifier puts into the wanted class (from
    the reference; from the batch where there is none) and d the first distance, once for every weight w.
    """

    steps: int = 60
    step: float | None = None
    draws: int = 8
    kappa: float = 1.0
    weights: tuple[float, ...] = (0.0, 0.03, 0.3)

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        inside = transparent(target)
        wanted = self._models(inside, images, labels, generator)
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        best = Best(target, images)
        for weight in self.weights:
            x = self.start(images, True, generator)
            first: Tensor | None = None
            for _ in range(self.steps):
                with torch.enable_grad():
                    leaf = x.detach().requires_grad_()
                    distance = (inside.embed(leaf) - wanted).square().sum(1)
                    first = distance.detach().clamp_min(1e-12) if first is None else first
                    gap = margin(target.logits(leaf, "clean")[0], labels)
                    objective = weight * gap.clamp_max(self.kappa) - distance / first
                    (gradient,) = torch.autograd.grad(objective.sum(), leaf)
                x = self.move(x, gradient, step, images)
            with torch.no_grad():
                best.offer(x, mean_margin(target.logits(x, None, self.draws, generator), labels))
        return best.images

    @torch.no_grad()
    def _models(self, target: Transparent, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """For every image the features of a clean image of the class paired with its own (0 with 1, 2 with 3, …)."""
        pool = target.reference_images()
        pool = pool if len(pool) else images
        logits, features = target.logits(pool, "clean")[0], target.embed(pool)
        classes = logits.shape[1]
        swapped = labels ^ 1  # an odd class out takes the one before it
        swapped = torch.where(swapped < classes, swapped, labels - 1)
        # The likeliest member of the class comes first; a random choice among members keeps their spread.
        fits = logits.argmax(1)[None, :] == swapped[:, None]
        chance = torch.where(fits, torch.rand(fits.shape, generator=generator, device=fits.device), -1.0)
        none = ~fits.any(1)
        choice = torch.where(none, logits[:, swapped].argmax(0), chance.argmax(1))
        return features[choice]

"""BPDA+EOT (Athalye et al. 2018): noise and denoiser in the forward pass, the identity in the backward pass."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.losses import cross_entropy, mean_margin
from twoprong.attacks.target import Target, transparent


@dataclass(frozen=True, kw_only=True)
class BPDA(Attack):
    """PGD whose gradient is taken at what the flagged route's classifier sees, averaged over `draws` of the noise."""

    steps: int = 50
    step: float | None = None
    draws: int = 15
    random_start: bool = True

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        inside = transparent(target)
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        best, x = Best(target, images), self.start(images, self.random_start, generator)
        for _ in range(self.steps):
            with torch.no_grad():
                seen = inside.restored(x, "flagged", self.draws, generator)
            with torch.enable_grad():
                leaf = seen.detach().requires_grad_()
                logits = inside.classified(leaf, "flagged").unflatten(0, (-1, len(images)))
                (gradient,) = torch.autograd.grad(cross_entropy(logits, labels).sum(), leaf)
            best.offer(x, mean_margin(logits, labels))
            x = self.move(x, gradient.unflatten(0, (-1, len(images))).mean(0), step, images)
        with torch.no_grad():
            best.offer(x, mean_margin(target.logits(x, "flagged", self.draws, generator), labels))
        return best.images

"""BPDA+EOT (Athalye et al. 2018): noise and denoiser in the forward pass, the identity in the backward pass."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.losses import cross_entropy, mean_margin
from twoprong.attacks.target import Target, transparent
from twoprong.config import Count, Flag, NotNegative


@dataclass(frozen=True, kw_only=True)
class BPDA(Attack):
    """PGD whose gradient is taken at what the flagged route's classifier sees, averaged over `draws` of the noise.

    `average` says what is averaged before that: the draws' losses, or their logits, of which one loss is taken (the default
    of Hill et al. 2021, with a step of 2/255 for 8/255).
    """

    steps: Count = 50
    step: NotNegative | None = None
    draws: Count = 15
    random_start: Flag = True
    average: Literal["loss", "logits"] = "loss"

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
                scored = logits.mean(0) if self.average == "logits" else logits
                (gradient,) = torch.autograd.grad(cross_entropy(scored, labels).sum(), leaf)
            best.offer(x, mean_margin(logits, labels))
            x = self.move(x, gradient.unflatten(0, (-1, len(images))).mean(0), step, images)
        best.settle(x, lambda found: mean_margin(target.logits(found, "flagged", self.draws, generator), labels))
        return best.images

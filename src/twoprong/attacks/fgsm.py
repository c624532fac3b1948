"""FGSM (Goodfellow et al. 2015): one step of the full budget."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, loss_gradient
from twoprong.attacks.losses import cross_entropy
from twoprong.attacks.target import Target


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """x + ε·direction(∇ CE(f(x), y))."""

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        gradient = loss_gradient(target, images, labels, cross_entropy, generator).gradient
        return self.move(images, gradient, self.eps, images)

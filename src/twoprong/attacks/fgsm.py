"""FGSM (Goodfellow et al. 2015): one step of the full budget."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twoprong.attacks.base import Attack, Model


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """x + ε·direction(∇ CE(f(x), y))."""

    def perturb(self, model: Model, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        def loss(x: Tensor) -> Tensor:
            return F.cross_entropy(model(x), labels, reduction="none")

        return self.ascend(images, images, steps=1, step=self.eps, objective=loss)

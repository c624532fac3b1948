"""PGD (Madry et al. 2018): projected gradient ascent on the cross-entropy."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from twoprong.attacks.base import Attack, Model


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """x ← Π(x + step·direction(∇ CE(f(x), y))), from a random point of the ball."""

    step: float = 2 / 255
    steps: int = 20
    random_start: bool = True

    def perturb(self, model: Model, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        def loss(x: Tensor) -> Tensor:
            return F.cross_entropy(model(x), labels, reduction="none")

        start = images
        if self.random_start:
            start = self.ball.project(images + self.ball.random(images, self.eps, generator), images, self.eps)
        return self.ascend(images, start, self.steps, self.step, loss)

"""Noise: the baseline that every attack has to beat, and a defence should hardly notice."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack
from twoprong.attacks.target import Target


@dataclass(frozen=True, kw_only=True)
class Noise(Attack):
    """One random perturbation of the full budget, chosen by nothing: ±ε in linf, a direction of length ε in l2."""

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        return images + self.eps * self.ball.direction(torch.empty_like(images).normal_(generator=generator))

"""MMA, the minimum-margin attack (Gao et al. 2022): the attack that DAD trains on, so that PGD and its kin stay unseen."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Model


@dataclass(frozen=True, kw_only=True)
class MMA(Attack):
    """For each of the `targets` likeliest wrong classes t, ascend the margin z_t - z_y; keep the image with the largest.

    Deterministic. The targets are one batch: each step is one forward and backward pass over targets × N images.
    """

    step: float = 2 / 255
    steps: int = 10
    targets: int = 3

    def perturb(self, model: Model, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        with torch.no_grad():
            logits = model(images)
        k = min(self.targets, logits.shape[1] - 1)
        wrong = logits.scatter(1, labels[:, None], float("-inf")).topk(k, 1).indices.T.reshape(-1)
        true, origin = labels.repeat(k), images.repeat(k, 1, 1, 1)

        def margin(x: Tensor) -> Tensor:
            z = model(x)
            return (z.gather(1, wrong[:, None]) - z.gather(1, true[:, None])).squeeze(1)

        tried = self.ascend(origin, origin, self.steps, self.step, margin)
        with torch.no_grad():
            best = margin(tried).view(k, -1).argmax(0)
        return tried.view(k, *images.shape)[best, torch.arange(len(images), device=images.device)]

"""MMA, the minimum-margin attack (Gao et al. 2022): the attack that DAD trains on, so that PGD and its kin stay unseen."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, loss_gradient
from twoprong.attacks.target import Target
from twoprong.config import Count, NotNegative


@dataclass(frozen=True, kw_only=True)
class MMA(Attack):
    """For each of the `targets` likeliest wrong classes t, ascend the margin z_t - z_y; keep the image with the largest.

    Deterministic on a deterministic target. `step` is ε/4 where it is not given. Where images are judged one by one, the
    targets are one batch of targets × N images.
    """

    steps: Count = 10
    step: NotNegative | None = None
    targets: Count = 3

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        with torch.no_grad():
            logits = target.logits(images, generator=generator)[0]
        k = min(self.targets, logits.shape[1] - 1)
        wrong = logits.scatter(1, labels[:, None], float("-inf")).topk(k, 1).indices.T
        if target.coupled:  # stacked copies would be another batch
            tried, margins = zip(*(self._towards(target, images, labels, one, generator) for one in wrong), strict=True)
            images_by_target, margins_by_target = torch.stack(tried), torch.stack(margins)
        else:
            stacked = self._towards(target, images.repeat(k, 1, 1, 1), labels.repeat(k), wrong.reshape(-1), generator)
            images_by_target, margins_by_target = stacked[0].view(k, *images.shape), stacked[1].view(k, -1)
        best = margins_by_target.argmax(0)
        return images_by_target[best, torch.arange(len(images), device=images.device)]

    def _towards(
        self, target: Target, images: Tensor, labels: Tensor, wrong: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """The images after ascending z_wrong - z_label, and that margin."""

        def towards(logits: Tensor, labels: Tensor) -> Tensor:
            columns = torch.stack([wrong, labels], -1).expand(*logits.shape[:-1], 2)
            z = logits.gather(-1, columns)
            return z[..., 0] - z[..., 1]

        step, x = self.eps / 4 if self.step is None else self.step, images
        for _ in range(self.steps):
            gradient = loss_gradient(target, x, labels, towards, generator).gradient
            x = self.move(x, gradient, step, images)
        with torch.no_grad():
            return x, towards(target.logits(x, generator=generator), labels)[0]

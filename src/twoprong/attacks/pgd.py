"""PGD (Madry et al. 2018) and its kin: projected gradient ascent, averaged over the noise if there is any."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best, loss_gradient
from twoprong.attacks.losses import LOSSES, LossName, mean_margin
from twoprong.attacks.target import Role, Target
from twoprong.config import Count, Flag, NotNegative


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """x ← Π(x + step·direction(∇ E[loss(f(x), y)])); the best iterate by the margin is kept, over all restarts.

    `step` is 2.5·ε/steps where it is not given. `draws` is the number of noise draws averaged per step (EOT).
    """

    steps: Count = 20
    step: NotNegative | None = None
    restarts: Count = 1
    draws: Count = 1
    loss: LossName = "ce"
    random_start: Flag = True

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.climb(target, images, labels, generator).images

    def climb(
        self,
        target: Target,
        images: Tensor,
        labels: Tensor,
        generator: torch.Generator | None,
        route: Role | None = None,
    ) -> Best:
        """The search itself, on the route the batch takes or on a given one."""
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        best = Best(target, images)
        for _ in range(self.restarts):
            x = self.start(images, self.random_start, generator)
            for _ in range(self.steps):
                gradient, score, _ = loss_gradient(target, x, labels, LOSSES[self.loss], generator, route, self.draws)
                best.offer(x, score)
                x = self.move(x, gradient, step, images)
            best.settle(x, lambda found: mean_margin(target.logits(found, route, self.draws, generator), labels))
        return best


@dataclass(frozen=True, kw_only=True)
class BIM(PGD):
    """PGD from the image itself (Kurakin et al. 2017)."""

    random_start: Flag = False


@dataclass(frozen=True, kw_only=True)
class EOTPGD(PGD):
    """PGD on the expectation over 20 draws of the target's noise (Athalye et al. 2018)."""

    draws: Count = 20

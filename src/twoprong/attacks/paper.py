"""The paper's own adaptive attack (Algorithm 3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, loss_gradient
from twoprong.attacks.gauge import value_of
from twoprong.attacks.losses import cross_entropy
from twoprong.attacks.target import Role, Target
from twoprong.config import Count, Flag, NotNegative, Number


@dataclass(frozen=True, kw_only=True)
class Paper(Attack):
    """x ← Π(x + step·direction(∇ MMD-OPT(S_C, x) + α ∇ E[CE(route(x), y)])), the last iterate.

    S_C are the batch's own clean originals, as in Algorithm 3; the route is the denoiser's once that statistic reaches the
    threshold: the deployed one, or a constant (Algorithm 3 writes 0.05). Algorithm 3 writes a sign for every norm; here the
    direction is the norm's. It ascends the statistic, so it asks to be detected: a reference point, not a serious attack.
    """

    steps: Count = 200
    step: NotNegative | None = None
    draws: Count = 20
    alpha: NotNegative = 1e-2
    threshold: Number | None = None  # None: the deployed one
    random_start: Flag = False

    def seen(self, target: Target) -> Target:
        """What the gradient of the cross-entropy is taken through."""
        return target

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        step = self.eps / 4 if self.step is None else self.step
        threshold = target.threshold(len(images)) if self.threshold is None else self.threshold
        x, through = self.start(images, self.random_start, generator), self.seen(target)
        for _ in range(self.steps):
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                statistic = target.statistic(leaf, images)
                (up,) = torch.autograd.grad(statistic, leaf)
            route: Role = "passing" if value_of(statistic) < threshold else "flagged"
            gradient = loss_gradient(through, x, labels, cross_entropy, generator, route, self.draws).gradient
            x = self.move(x, up + self.alpha * gradient / len(images), step, images)
        return x

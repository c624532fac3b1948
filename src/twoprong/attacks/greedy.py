"""`greedy`: fool images one by one, inconspicuously, then spend the detector's slack on the best hidden ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack
from twoprong.attacks.gauge import most_hidden
from twoprong.attacks.target import Target, Transparent, transparent
from twoprong.config import Count, NotNegative, Numbers


@dataclass(frozen=True, kw_only=True)
class Greedy(Attack):
    """A batch test cannot notice a few images among many. This attack finds how many, and which.

    Every image ascends min(margin, κ) - λ·witness by itself, for every λ of `penalties`, the margin summed over all hurdles
    of the passing route; the least conspicuous fooled version is kept. Then as many as the test lets pass, the best hidden
    first, replace their originals.
    """

    steps: Count = 40
    step: NotNegative | None = None
    kappa: NotNegative = 0.5
    penalties: Numbers = (0.0, 1.0, 1e1, 1e2, 1e3)

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        inside = transparent(target)
        hidden, cost = self._hide(inside, images, labels, generator)
        return most_hidden(target, images, hidden, cost)

    def _hide(
        self, target: Transparent, images: Tensor, labels: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """For every image its least conspicuous fooled version and what that adds to the witness; infinite if none."""
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        with torch.no_grad():
            clean = target.witness(images, images)
        hidden, cost = images, torch.full_like(clean, torch.inf)
        for penalty in self.penalties:
            x = self.start(images, penalty == 0, generator)
            for last in [*[False] * self.steps, True]:
                with torch.enable_grad():
                    leaf = x.detach().requires_grad_()
                    past = torch.stack([hurdle.past for hurdle in target.hurdles(leaf, labels, "passing", generator)])
                    seen = target.witness(leaf, images)
                    gain = past.clamp_max(self.kappa).sum(0)
                    (gradient,) = torch.autograd.grad((gain - penalty * seen).sum(), leaf)
                added = torch.where((past > 0).all(0), seen - clean, torch.inf).detach()
                better = added < cost
                hidden = torch.where(better[:, None, None, None], x, hidden)
                cost = torch.where(better, added, cost)
                if not last:
                    x = self.move(x, gradient, step, images)
        return hidden, cost

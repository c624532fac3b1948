"""`unblamed`: be misclassified in a flagged batch, and let others take the blame."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best
from twoprong.attacks.losses import margin, mean_margin
from twoprong.attacks.target import Target, Transparent, transparent
from twoprong.config import Count, NotNegative, Numbers

BLAMED = 1e3  # on top of the suspicion of an image above the limit: any image below it is hidden better
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1)  # of the misclassified images: how many of them to send


@dataclass(frozen=True, kw_only=True)
class Unblamed(Attack):
    """Whoever is not blamed takes the passing route, even in a flagged batch. This attack keeps below the limit of blame.

    Every image ascends min(margin, κ) - λ·relu(suspicion + slack) - λ·witness by itself, for every λ of `penalties`: the
    suspicion is how far its score is above the limit, and the images with the largest witness are blamed next. Of each image
    the best hidden misclassified version is kept: below the limit the one with the least witness, else the least suspicious.
    The batches tried are the last iterates of every λ, and the best hidden images in several numbers, the rest clean: the
    more there are, the more of them are blamed. The batch that does best when deployed is kept.
    """

    steps: Count = 40
    step: NotNegative | None = None
    kappa: NotNegative = 0.5
    slack: NotNegative = 0.5
    penalties: Numbers = (0.1, 1.0, 10.0, 100.0)
    draws: Count = 8

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        inside, best = transparent(target), Best(target, images)

        def offer(found: Tensor) -> None:
            with torch.no_grad():
                best.offer(found, mean_margin(target.logits(found, None, self.draws, generator), labels))

        hidden, cost = images, torch.full_like(images[:, 0, 0, 0], torch.inf)
        for penalty in self.penalties:
            last, found, price = self.hide(inside, images, labels, penalty, penalty, generator)
            hidden, cost = torch.where((price < cost)[:, None, None, None], found, hidden), torch.minimum(price, cost)
            offer(last)
        order = cost.argsort()[: int(cost.isfinite().sum())]
        for count in sorted({round(share * len(order)) for share in SHARES} - {0}):
            offer(images.index_copy(0, order[:count], hidden[order[:count]]))
        return best.images

    def hide(
        self,
        target: Transparent,
        images: Tensor,
        labels: Tensor,
        on_suspicion: float,
        on_witness: float,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The last iterate; every image's best hidden misclassified version; how well it hides: infinite if none is."""
        step = 2.5 * self.eps / self.steps if self.step is None else self.step
        x = self.start(images, True, generator)
        hidden, cost = images, torch.full_like(images[:, 0, 0, 0], torch.inf)
        for last in [*[False] * self.steps, True]:
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                gap, suspicion = margin(target.logits(leaf, "passing")[0], labels), target.suspicion(leaf)
                witness = target.witness(leaf, images)
                price = on_suspicion * (suspicion + self.slack).relu() + on_witness * witness
                (gradient,) = torch.autograd.grad((gap.clamp_max(self.kappa) - price).sum(), leaf)
            seen = torch.where(suspicion < 0, witness, BLAMED + suspicion).detach()
            seen = torch.where(gap > 0, seen, torch.inf)
            better = seen < cost
            hidden, cost = torch.where(better[:, None, None, None], x, hidden), torch.minimum(seen, cost)
            if not last:
                x = self.move(x, gradient, step, images)
        return x, hidden, cost

"""What a gate between a robust network R and an accurate one A would reach, from R's margins alone.

The gate answers with R where R's margin, the lead of its first class over its second, is at least τ, otherwise with A. An
attacker wins if he gets R below τ (A is given away here: a natural one has no robustness) or makes R choose wrongly. So:

- robust: the smallest margin for the true class that is reachable in the ball is still ≥ τ;
- clean: R is right with a margin ≥ τ, or its margin is < τ and A is right.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twoprong.attacks.apgd import likeliest_wrong, margin_to
from twoprong.attacks.losses import LOSSES, margin
from twoprong.attacks.norms import Linf

Score = Callable[[Tensor], Tensor]  # logits to what margins are read off


def probabilities(temperature: float) -> Score:
    return lambda logits: (logits / temperature).softmax(-1)


SCORES: dict[str, Score] = {
    "logits": lambda logits: logits,
    "p, T=0.5": probabilities(0.5),
    "p, T=1": probabilities(1.0),
    "p, T=2": probabilities(2.0),
    "p, T=4": probabilities(4.0),
}


@dataclass(frozen=True)
class Margins:
    """Per image and for one score: the lead of R's first class, whether R and A are right, and R's smallest reachable
    margin for the true class (negative where the attack makes R wrong)."""

    lead: Tensor
    right: Tensor
    accurate_right: Tensor
    smallest: Tensor


@dataclass(frozen=True)
class Point:
    """One operating point, as shares of the images; `deferred` is how many clean images go to A."""

    tau: float
    clean: float
    robust: float
    deferred: float


def operating_point(margins: Margins, tau: float) -> Point:
    """At τ = 0 nothing is deferred: R alone. A margin of exactly zero is an error for the attacker's purposes."""
    kept = margins.lead >= tau
    clean = torch.where(kept, margins.right, margins.accurate_right)
    robust = (margins.smallest >= tau) & (margins.smallest > 0)
    share = [float(values.double().mean()) for values in (clean, robust, ~kept)]
    return Point(tau, *share)


def curve(margins: Margins, points: int = 40) -> list[Point]:
    """Operating points from R alone to the τ at which nearly everything is deferred, at even steps of deferred images."""
    quantiles = torch.linspace(0, 0.9, points, dtype=torch.double)
    taus = torch.quantile(margins.lead.double().cpu(), quantiles).tolist()
    return [operating_point(margins, tau) for tau in (0.0, *taus)]


def choose_tau(lead: Tensor, right: Tensor, accurate_right: Tensor, balance: float) -> float:
    """The smallest τ that gives back 1 - `balance` of the clean accuracy that R lacks beside A, on these images.

    `balance` 1 gives 0, R alone. As the smallest, it is the most robust of those that do: robustness only falls with τ.
    """
    ordered, order = lead.double().cpu().sort()
    right, accurate_right = (answers.double().cpu()[order] for answers in (right, accurate_right))
    none = torch.zeros(1, dtype=torch.double)
    clean = (
        torch.cat([none, accurate_right.cumsum(0)]) + right.sum() - torch.cat([none, right.cumsum(0)])
    )  # the first k to A
    goal = balance * clean[0] + (1 - balance) * torch.maximum(clean[-1], clean[0])
    between = (torch.cat([none, ordered]) + torch.cat([ordered, ordered[-1:] + 1e-6])) / 2
    between[0] = 0.0
    apart = torch.cat([none == 0, ordered[1:] > ordered[:-1], none == 0])  # no τ divides images with the same lead
    return float(between[((clean >= goal - 1e-9) & apart).nonzero()[0, 0]])


def lead(values: Tensor) -> Tensor:
    """First minus second, on (N, classes)."""
    top = values.topk(2, -1).values
    return top[..., 0] - top[..., 1]


class Smallest:
    """For every score the smallest margin of the true class seen so far, with the image that has it."""

    def __init__(self, images: Tensor, labels: Tensor, scores: dict[str, Score]) -> None:
        self.labels, self.scores = labels, scores
        self.images = {name: images.clone() for name in scores}
        self.value = {name: torch.full_like(images[:, 0, 0, 0], torch.inf) for name in scores}

    @torch.no_grad()
    def offer(self, images: Tensor, logits: Tensor) -> None:
        for name, score in self.scores.items():
            value = -margin(score(logits.float()), self.labels)
            lower = value < self.value[name]
            self.value[name] = torch.where(lower, value, self.value[name])
            self.images[name] = torch.where(lower[:, None, None, None], images, self.images[name])


def descend(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    eps: float,
    steps: int,
    found: Smallest,
    draw: torch.Generator,
    targets: int = 9,
) -> None:
    """Look for small margins in the ℓ∞ ball, on whatever loss may lead there: CE, DLR, the margin in every score, and the
    margin towards each of the likeliest wrong classes. Signed steps from ε down to 0 as a cosine, from a random start."""
    ball = Linf()
    with torch.no_grad():
        logits = model(images)
    found.offer(images, logits)
    for loss in _losses(found.scores, logits, labels, targets):
        x = ball.project(images + ball.random(images, eps, draw), images, eps)
        for number in range(steps + 1):
            leaf = x.detach().requires_grad_()
            logits = model(leaf)
            (gradient,) = torch.autograd.grad(loss(logits.float()).sum(), leaf)
            found.offer(x, logits)
            size = eps * 0.5 * (1 + math.cos(math.pi * number / steps))
            x = ball.project(x + size * gradient.sign(), images, eps)


def _losses(scores: dict[str, Score], logits: Tensor, labels: Tensor, targets: int) -> Iterator[Callable[[Tensor], Tensor]]:
    for name in ("ce", "dlr"):
        yield lambda z, name=name: LOSSES[name](z, labels)  # type: ignore[misc]
    for score in scores.values():
        yield lambda z, score=score: margin(score(z), labels)  # type: ignore[misc]
    for aims in likeliest_wrong(logits.float(), labels, targets):
        yield lambda z, aims=aims: margin_to(z, labels, aims)  # type: ignore[misc]


@torch.no_grad()
def read(robust: nn.Module, accurate: nn.Module, images: Tensor, found: Smallest) -> dict[str, Margins]:
    """The margins for every score, from the networks as they are; each image kept for one score is tried for all."""
    labels, logits = found.labels, robust(images)
    right, accurate_right = logits.argmax(1) == labels, accurate(images).argmax(1) == labels
    exact = Smallest(images, labels, found.scores)
    for candidate in (images, *found.images.values()):
        exact.offer(candidate, robust(candidate))
    return {
        name: Margins(lead(score(logits)), right, accurate_right, exact.value[name]) for name, score in found.scores.items()
    }


def joined(pieces: Sequence[dict[str, Margins]]) -> dict[str, Margins]:
    """Margins of several batches as one."""
    return {name: Margins(*map(torch.cat, _columns(piece[name] for piece in pieces))) for name in pieces[0]}


def _columns(margins: Iterable[Margins]) -> Iterable[tuple[Tensor, ...]]:
    return zip(*((one.lead, one.right, one.accurate_right, one.smallest) for one in margins), strict=True)

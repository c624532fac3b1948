"""`gate`: past every network that an answer depends on, image by image, and then past the test."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.apgd import likeliest_wrong, margin_to
from twoprong.attacks.base import CPU_VALUES, Attack, Best
from twoprong.attacks.gauge import Gauge, most_hidden, raised, statistic_gradient, value_of
from twoprong.attacks.losses import LOSSES, mean_margin
from twoprong.attacks.target import Hurdle, Role, Target, Transparent, transparent
from twoprong.config import Count
from twoprong.errors import InputError

Climb = Callable[[Hurdle, Tensor], Tensor]  # of a hurdle and the rows it is about: what is ascended, image by image
Order = Callable[[Tensor], Tensor]  # from which hurdles (hurdles, N) are clear to those that are climbed next
CLEAR = (0.02, 0.5)  # so far past a first hurdle, and past those behind it, rounding does not take an image back
GPU_VALUES = 2**21  # in one pass on a GPU, which a batch of a hundred small images leaves half idle


def _together(clear: Tensor) -> Tensor:
    return ~clear


def _first_alone(clear: Tensor) -> Tensor:
    """Only the first, as far as it goes: a robust network that is wrong and sure of it does not ask anybody else."""
    return torch.cat([torch.ones_like(clear[:1]), torch.zeros_like(clear[1:])])


def _forwards(clear: Tensor) -> Tensor:
    return ~clear & torch.cat([torch.ones_like(clear[:1]), clear.cumprod(0)[:-1].bool()])


def _backwards(clear: Tensor) -> Tensor:
    return _forwards(clear.flip(0)).flip(0)


ORDERS: tuple[Order, ...] = (_together, _first_alone, _forwards, _backwards)


@dataclass(frozen=True, kw_only=True)
class Gate(Attack):
    """Signed steps from ε down to 0 as a cosine, along Σ_k ∇h_k / |∇h_k| over the hurdles k that are not cleared yet.

    Behind a gate the hurdles are the robust network, whose margin has to fall below the gate's threshold, and the accurate
    one, which has to be wrong; or the robust one is wrong and sure of it. Each gets the same say, however steep it is. The
    restarts differ in the order in which hurdles are taken (`ORDERS`). There is one run each for how far the attacker is
    past the hurdle, CE, DLR, and the margin towards each of the likeliest wrong classes. Several runs are computed at once,
    and images that are across rest. This is done for both routes.

    Batches that the test would send to the other route are brought back. On the passing route the statistic is descended
    with all hurdles kept cleared, and only as many images are handed in as the test lets pass, the best hidden first; on
    the flagged route the statistic is raised. The batch that does best when deployed is kept.
    """

    steps: Count = 50
    targets: Count = 9
    restarts: Count = 1
    draws: Count = 8

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        inside, best = transparent(target), Best(target, images)
        try:
            gauge = Gauge.of(target, images)
        except InputError:  # too few to be tested
            gauge = Gauge(float("inf"), 1.0)
        for role in target.routes:
            found, across = self._search(inside, images, labels, role, generator)
            for batch in self._batches(inside, images, labels, found, across, role, gauge, generator):
                with torch.no_grad():
                    best.offer(batch, mean_margin(target.logits(batch, None, self.draws, generator), labels))
        return best.images

    def _batches(
        self,
        target: Transparent,
        images: Tensor,
        labels: Tensor,
        found: Tensor,
        across: Tensor,
        role: Role,
        gauge: Gauge,
        generator: torch.Generator | None,
    ) -> Iterator[Tensor]:
        """Whole batches to try: as found, and so changed that they take the route they were made for."""
        yield found
        if gauge.threshold == float("inf"):
            return
        if role == "flagged":
            yield raised(self, target, images, found, gauge)
            return
        only = torch.where(across[:, None, None, None], found, images)  # what is not across need not be seen
        yield only
        with torch.no_grad():
            if value_of(target.statistic(only)) < gauge.threshold:
                return
        quiet, kept = self._hide(target, images, only, labels, across, gauge, generator)
        yield quiet
        for hidden, fooled in ((quiet, kept), (only, across)):
            with torch.no_grad():
                cost = target.witness(hidden, images) - target.witness(images, images)
            yield most_hidden(target, images, hidden, torch.where(fooled, cost, torch.inf))

    def _search(
        self, target: Transparent, images: Tensor, labels: Tensor, role: Role, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """For every image the version that is farthest past its worst hurdle, and whether it is past all of them."""
        with torch.no_grad():
            hurdles = target.hurdles(images, labels, role, generator)
        best, score = images.clone(), _worst(hurdles)
        climbs = list(self._climbs(hurdles[0].logits, labels))
        for restart in range(self.restarts):
            order, waiting = ORDERS[restart % len(ORDERS)], climbs
            while waiting:
                index = (score <= 0).nonzero()[:, 0]
                if len(index) == 0:
                    return best, score > 0
                values = GPU_VALUES if images.is_cuda else CPU_VALUES
                at_once = max(1, values // images[index].numel())
                now, waiting = waiting[:at_once], waiting[at_once:]
                rows = index.repeat(len(now))
                clean = images[rows]
                x = self.start(clean, True, generator)
                for number in range(self.steps + 1):
                    gradient, past = _ascent(target, x, labels[rows], role, now, index, generator, order)
                    highest, run = past.view(len(now), -1).max(0)
                    better = highest > score[index]
                    found = x.view(len(now), len(index), *x.shape[1:])[run, torch.arange(len(index), device=x.device)]
                    best[index[better]], score[index[better]] = found[better], highest[better].to(score.dtype)
                    step = self.eps * 0.5 * (1 + math.cos(math.pi * number / self.steps))
                    x = self.move(x, gradient, step, clean)
        return best, score > 0

    def _climbs(self, logits: Tensor, labels: Tensor) -> Iterator[Climb]:
        """What the runs ascend on every hurdle."""
        yield _past
        for name in ("ce", "dlr"):
            yield lambda hurdle, rows, name=name: LOSSES[name](hurdle.logits, labels[rows])  # type: ignore[misc]
        for aims in likeliest_wrong(logits, labels, self.targets):
            yield lambda hurdle, rows, aims=aims: margin_to(hurdle.logits, labels[rows], aims[rows])  # type: ignore[misc]

    def _hide(
        self,
        target: Transparent,
        images: Tensor,
        found: Tensor,
        labels: Tensor,
        across: Tensor,
        gauge: Gauge,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """Descend the statistic from `found`, images that lose a hurdle climbing back; the quietest with most across."""
        rows = torch.arange(len(images), device=images.device)
        hidden, kept, rank = found, across, (-1, -math.inf)
        x = found
        for number in range(2 * self.steps + 1):
            statistic, slope = statistic_gradient(target, x)
            gradient, past = _ascent(target, x, labels, "passing", [_past], rows, generator)
            fooled = across & (past > 0)
            passes = statistic < gauge.threshold
            now = (int(fooled.sum()) if passes else 0, -statistic)
            if now > rank:
                hidden, kept, rank = x, fooled, now
            wanted = _unit(gradient) - _unit(slope) * (gauge.excess(statistic) > 0)
            step = self.eps / 8 * 0.5 * (1 + math.cos(math.pi * number / (2 * self.steps)))
            x = torch.where(across[:, None, None, None], self.move(x, wanted, step, images), images)
        return hidden, kept


def _past(hurdle: Hurdle, rows: Tensor) -> Tensor:
    return hurdle.past


def _ascent(
    target: Transparent,
    x: Tensor,
    labels: Tensor,
    role: Role,
    climbs: Sequence[Climb],
    rows: Tensor,
    generator: torch.Generator | None,
    order: Order = _together,
) -> tuple[Tensor, Tensor]:
    """The sum of the unit gradients of the hurdles that come next, and how far each image is past its worst.

    `x` is the images `rows` once for each of the climbs, climb after climb. A single hurdle is climbed without end.
    """
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        hurdles = target.hurdles(leaf, labels, role, generator)
        limits = torch.tensor([CLEAR[min(number, 1)] for number in range(len(hurdles))], device=x.device)
        clear = torch.stack([hurdle.past.detach() for hurdle in hurdles]) > limits[:, None]
        climbed = order(clear) if len(hurdles) > 1 else ~torch.zeros_like(clear)
        total = torch.zeros_like(x)
        for hurdle, wanted in zip(hurdles, climbed, strict=True):
            parts = zip(climbs, hurdle.logits.split(len(rows)), hurdle.past.split(len(rows)), strict=True)
            height = torch.stack([climb(Hurdle(logits, past), rows).sum() for climb, logits, past in parts]).sum()
            (gradient,) = torch.autograd.grad(height, leaf)
            total += _unit(gradient) * wanted[:, None, None, None]
    return total, _worst(hurdles)


def _worst(hurdles: list[Hurdle]) -> Tensor:
    return torch.stack([hurdle.past.detach() for hurdle in hurdles]).amin(0)


def _unit(gradient: Tensor) -> Tensor:
    return gradient / gradient.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None, None]

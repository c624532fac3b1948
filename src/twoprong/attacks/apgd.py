"""APGD (Croce & Hein 2020, "Reliable evaluation"): PGD with momentum whose step size looks after itself."""

import math
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, Best, loss_gradient
from twoprong.attacks.losses import LOSSES, LossName, mean_margin
from twoprong.attacks.target import Target
from twoprong.config import Count, Flag, NotNegative

MOMENTUM = 0.75


class Survivors(Best):
    """`Best`, where images that are across need no more work: `left` are the others, and `offer_at` is about them alone.

    Behind a batch test nothing is taken out of its batch, and `left` is always everyone.
    """

    def __init__(self, target: Target, images: Tensor) -> None:
        super().__init__(target, images.clone())

    @property
    def left(self) -> Tensor:
        """Indices into the batch, in order."""
        everyone = torch.arange(len(self.score), device=self.score.device)
        return everyone if self.coupled else everyone[self.score <= 0]

    def offer_at(self, index: Tensor, images: Tensor, score: Tensor) -> None:
        if self.coupled:
            self.offer(images, score)
            return
        better = score > self.score[index]
        self.images[index[better]] = images[better]
        self.score[index[better]] = score[better].to(self.score.dtype)


@dataclass(frozen=True, kw_only=True)
class APGD(Attack):
    """Auto-PGD on a loss of `LOSSES`; the best iterate by the margin is kept, over all restarts.

    z = Π(x_k + η·direction(∇)), x_{k+1} = Π(x_k + ¾(z - x_k) + ¼(x_k - x_{k-1})), from η = 2ε. At every checkpoint η is
    halved and the search goes on from the point of the highest loss, if fewer than `rho` of the steps since the last one
    raised the loss, or if neither η nor the highest loss has changed since. Where images are judged one by one, so are
    their steps, and those already misclassified are left alone; behind a batch test the loss is the batch's mean and the
    step one for all. `draws` is the number of noise draws averaged per step (EOT).
    """

    steps: Count = 100
    restarts: Count = 1
    draws: Count = 1
    rho: NotNegative = 0.75
    loss: LossName = "ce"
    random_start: Flag = True

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        with torch.no_grad():
            logits = target.logits(images, None, self.draws, generator)
        best = Survivors(target, images)
        best.offer(images, mean_margin(logits, labels))
        for _ in range(self.restarts):
            for aims in self.aims(logits.mean(0), labels):
                if self.draws > 1:  # who was across by luck of the draws is not done
                    with torch.no_grad():
                        best.score = mean_margin(target.logits(best.images, None, self.draws, generator), labels)
                self._climb(target, images, labels, aims, best, generator)
        return best.images

    def aims(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The classes (runs, N) to go for, one run after the other; here a single run that goes for none."""
        return labels[None]

    def objective(self, logits: Tensor, labels: Tensor, aims: Tensor) -> Tensor:
        """The loss of every image, on logits (..., N, classes)."""
        return LOSSES[self.loss](logits, labels)

    def _climb(
        self,
        target: Target,
        images: Tensor,
        labels: Tensor,
        aims: Tensor,
        best: Survivors,
        generator: torch.Generator | None,
    ) -> None:
        """One run, on the images that are left; what it finds is offered to `best`."""
        index = best.left
        if len(index) == 0:
            return
        at = self._begin(target, images[index], labels[index], aims[index], index, best, generator)
        momentum = 1.0  # the first step has no step before it
        for last, checkpoint in pairwise(checkpoints(self.steps)):
            for _ in range(checkpoint - last):
                self._step(target, at, momentum, best, generator)
                momentum = MOMENTUM
            at.adapt(self.rho * (checkpoint - last))
            if self.draws == 1 and not target.coupled:  # under noise, going on makes a success a surer one
                at = at.keep(best.score[at.index] <= 0)
                if len(at.index) == 0:
                    return

    def _begin(
        self,
        target: Target,
        images: Tensor,
        labels: Tensor,
        aims: Tensor,
        index: Tensor,
        best: Survivors,
        generator: torch.Generator | None,
    ) -> "_Ascent":
        x = self.start(images, self.random_start, generator)
        loss, gradient, score = self._look(target, x, labels, aims, generator)
        best.offer_at(index, x, score)
        step, rises = torch.full_like(loss, 2 * self.eps), torch.zeros_like(loss)
        steady = torch.zeros_like(loss, dtype=torch.bool)
        return _Ascent(index, images, labels, aims, x, x, loss, gradient, x, loss, gradient, step, rises, loss, steady)

    def _step(
        self, target: Target, at: "_Ascent", momentum: float, best: Survivors, generator: torch.Generator | None
    ) -> None:
        z = self.ball.project(at.x + _wide(at.step) * self.ball.direction(at.gradient), at.images, self.eps)
        x = self.ball.project(at.x + momentum * (z - at.x) + (1 - momentum) * (at.x - at.before), at.images, self.eps)
        loss, gradient, score = self._look(target, x, at.labels, at.aims, generator)
        best.offer_at(at.index, x, score)
        at.advance(x, loss, gradient)

    def _look(
        self, target: Target, x: Tensor, labels: Tensor, aims: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, gradient and margin of every image, from one pass; behind a batch test each is told the mean loss."""

        def objective(logits: Tensor, labels: Tensor) -> Tensor:
            return self.objective(logits, labels, aims)

        gradient, score, loss = loss_gradient(target, x, labels, objective, generator, draws=self.draws)
        return loss.mean().expand(len(x)) if target.coupled else loss, gradient, score


@dataclass(frozen=True, kw_only=True)
class APGDDLR(APGD):
    """APGD on the difference of logits ratio."""

    loss: LossName = "dlr"


@dataclass(frozen=True, kw_only=True)
class APGDT(APGD):
    """APGD on the targeted DLR, for each of the `targets` likeliest wrong classes t in turn.

    (z_t - z_y) / (z_(1) - (z_(3) + z_(4))/2); with fewer than four classes the plain margin z_t - z_y. `loss` has no say.
    """

    targets: Count = 9
    loss: LossName = "dlr"

    def aims(self, logits: Tensor, labels: Tensor) -> Tensor:
        return likeliest_wrong(logits, labels, self.targets)

    def objective(self, logits: Tensor, labels: Tensor, aims: Tensor) -> Tensor:
        towards = margin_to(logits, labels, aims)
        if logits.shape[-1] < 4:
            return towards
        ranked = logits.topk(4, -1).values
        return towards / (ranked[..., 0] - (ranked[..., 2] + ranked[..., 3]) / 2 + 1e-12)


def checkpoints(steps: int) -> list[int]:
    """0 = w_0 < w_1 < … ≤ steps, w_j = ⌈p_j·steps⌉ with p_1 = 0.22 and intervals that shrink by 0.03 down to 0.06.

    The last stretch up to `steps` is a checkpoint too, so that nothing is left over.
    """
    found, p, interval = [0], 0.22, 0.22
    while p < 1:
        found.append(math.ceil(round(p * steps, 6)))
        interval = max(interval - 0.03, 0.06)
        p += interval
    return sorted({*found, steps})


def likeliest_wrong(logits: Tensor, labels: Tensor, most: int) -> Tensor:
    """For logits (N, classes) the wrong classes (k, N), likeliest first, k = min(most, classes - 1)."""
    wrong = logits.scatter(1, labels[:, None], float("-inf"))
    return wrong.topk(min(most, logits.shape[1] - 1), 1).indices.T


def margin_to(logits: Tensor, labels: Tensor, aims: Tensor) -> Tensor:
    """z_t - z_y for classes t given image by image, on logits (..., N, classes)."""
    z = logits.gather(-1, torch.stack([aims, labels], -1).expand(*logits.shape[:-1], 2))
    return z[..., 0] - z[..., 1]


def _wide(values: Tensor) -> Tensor:
    return values[:, None, None, None]


@dataclass
class _Ascent:
    """Where every image stands in a run, each field (N, …): now, one step before, at its highest loss, and its step size."""

    index: Tensor
    images: Tensor
    labels: Tensor
    aims: Tensor
    x: Tensor
    before: Tensor
    loss: Tensor
    gradient: Tensor
    top: Tensor
    top_loss: Tensor
    top_gradient: Tensor
    step: Tensor
    rises: Tensor
    marked: Tensor  # the highest loss at the last checkpoint
    halved: Tensor  # whether the step was halved there

    def advance(self, x: Tensor, loss: Tensor, gradient: Tensor) -> None:
        self.rises = self.rises + (loss > self.loss)
        self.before, self.x, self.loss, self.gradient = self.x, x, loss, gradient
        better = loss > self.top_loss
        self.top = torch.where(_wide(better), x, self.top)
        self.top_gradient = torch.where(_wide(better), gradient, self.top_gradient)
        self.top_loss = torch.where(better, loss, self.top_loss)

    def adapt(self, enough: float) -> None:
        """At a checkpoint: halve the step and go back to the top, where progress was poor."""
        poor = (self.rises < enough) | (~self.halved & (self.top_loss <= self.marked))
        self.step = torch.where(poor, self.step / 2, self.step)
        self.x = torch.where(_wide(poor), self.top, self.x)
        self.gradient = torch.where(_wide(poor), self.top_gradient, self.gradient)
        self.loss = torch.where(poor, self.top_loss, self.loss)
        self.rises, self.marked, self.halved = torch.zeros_like(self.rises), self.top_loss, poor

    def keep(self, chosen: Tensor) -> "_Ascent":
        return _Ascent(*(getattr(self, field.name)[chosen] for field in fields(self)))

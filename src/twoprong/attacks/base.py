"""What every attack promises, kept in one place: an attack writes `perturb`, the base class keeps the promise."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, create_model
from torch import Tensor

from twoprong.attacks.losses import Loss, margin, mean_margin
from twoprong.attacks.norms import NORMS, Norm
from twoprong.attacks.target import Counted, Role, Target, as_target
from twoprong.config import NormName, NotNegative, check_fields
from twoprong.data.images import ImageLike, check_images
from twoprong.data.tensors import check_labels
from twoprong.errors import InputError
from twoprong.models.modes import evaluating

Model = Target | Callable[[Tensor], Tensor]
REVISION = 6  # raised when an attack finds something else with the same settings: bump it to invalidate stored results
CPU_VALUES = 2**18  # pixel values in one pass on a CPU: larger ones are slower, and running out of memory ends the process


@dataclass(frozen=True)
class AttackResult:
    """The whole batch after an attack, in order, and what the deployed object made of it.

    `success` says image by image who is misclassified, `flagged` whether the batch was called adversarial, `objective` is
    the mean margin of the wrong class, `queries` how many images were computed to get here.
    """

    images: Tensor
    success: Tensor
    flagged: bool
    statistic: float
    objective: float
    queries: int

    @property
    def accuracy(self) -> float:
        """The share of images still classified as they should be."""
        return 1 - self.success.double().mean().item()


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """Called with a Target (or a classifier), images (N, C, H, W) in [0,1] and true labels; returns an AttackResult.

    Promises: every image within `eps` of its original and in [0,1]; the whole batch, in order; the same result for the
    same generator; the model in eval mode meanwhile, its buffers and gradients untouched, its modes put back.
    """

    eps: NotNegative = 8 / 255
    norm: NormName = "linf"

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in check_fields(_model(type(self)), given).items():
            object.__setattr__(self, name, value)
        if self.norm == "linf" and self.eps > 1:
            raise InputError(f"eps: expected at most 1 for linf, pixels are in [0, 1], got {self.eps:g}; {self.eps:g}/255?")

    @property
    def ball(self) -> Norm:
        return NORMS[self.norm]

    def __call__(
        self, model: Model, images: ImageLike, labels: Tensor, generator: torch.Generator | None = None
    ) -> AttackResult:
        images = check_images(images).detach()
        labels = check_labels(labels, len(images))
        deployed = as_target(model)
        target = Counted(deployed)
        with evaluating(deployed):
            found = self.perturb(target, images, labels, generator).detach()
            found = self.ball.project(found, images, self.eps)
            outcome = target.decide(found, generator)
        success, gap = outcome.logits.argmax(1) != labels, margin(outcome.logits, labels)
        if (rejected := getattr(outcome, "rejected", None)) is not None:  # who is refused and gets no answer is not fooled
            unanswered = rejected & outcome.logits.isnan().all(1)
            success, gap = success & ~unanswered, gap.masked_fill(unanswered, 0.0)
        objective = gap.mean().item()
        return AttackResult(found, success, outcome.adversarial, outcome.statistic, objective, target.queries)

    @abstractmethod
    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Adversarial images for the batch; the caller projects them once more."""

    def start(self, images: Tensor, random: bool, generator: torch.Generator | None) -> Tensor:
        """The first iterate: a random point of the ball, or the images themselves."""
        if not random:
            return images
        return self.ball.project(images + self.ball.random(images, self.eps, generator), images, self.eps)

    def move(self, x: Tensor, gradient: Tensor, step: float, images: Tensor) -> Tensor:
        """One projected step up the gradient."""
        return self.ball.project(x + step * self.ball.direction(gradient), images, self.eps)


@cache
def _model(kind: type[Attack]) -> type[BaseModel]:
    """The settings of an attack as a pydantic model, so that they are checked like every other setting."""
    hints = get_type_hints(kind, include_extras=True)
    kinds: dict[str, Any] = {field.name: (hints[field.name], ...) for field in fields(kind)}
    return create_model(kind.__name__, __config__=ConfigDict(arbitrary_types_allowed=True), **kinds)


class Best:
    """The best iterate so far, by a score per image (the margin on the deployed object).

    Where images are judged one by one, each keeps its own best. Behind a batch test their outcomes hang together, so the
    batch is kept whole: most images across first, then the higher mean score.
    """

    def __init__(self, target: Target, images: Tensor) -> None:
        self.coupled, self.images = target.coupled, images
        self.score = torch.full((len(images),), -torch.inf, dtype=images.dtype, device=images.device)

    def offer(self, images: Tensor, score: Tensor) -> None:
        if self.coupled:
            if self._rank(score) > self._rank(self.score):
                self.images, self.score = images, score
            return
        better = score > self.score
        self.images = torch.where(better[:, None, None, None], images, self.images)
        self.score = torch.where(better, score, self.score)

    def settle(self, images: Tensor, look: Callable[[Tensor], Tensor]) -> None:
        """Offer the last iterate, and score the kept one anew: under noise the best of many scores is partly luck."""
        with torch.no_grad():
            self.score = look(self.images)
            self.offer(images, look(images))

    @staticmethod
    def _rank(score: Tensor) -> tuple[int, float]:
        return int((score > 0).sum()), score.mean().item()


class Ascent(NamedTuple):
    """What one look at the target gives an attack: where the loss rises, and each image's mean margin and mean loss."""

    gradient: Tensor
    margin: Tensor
    loss: Tensor


def loss_gradient(
    target: Target,
    images: Tensor,
    labels: Tensor,
    loss: Loss,
    generator: torch.Generator | None = None,
    route: Role | None = None,
    draws: int = 1,
) -> Ascent:
    """∂/∂images of Σ_i E[loss_i] over `draws` of the target's noise.

    All draws are one forward and backward pass; they are split only where memory asks for it.
    """
    # Never one of many: it takes two draws to see that a route has no noise.
    share = draws if images.is_cuda else min(draws, max(2, CPU_VALUES // images.numel()))
    while True:
        try:
            return _split_gradient(target, images, labels, loss, generator, route, draws, share)
        except torch.OutOfMemoryError:
            if share == 1:
                raise
            share = math.ceil(share / 2)


def _split_gradient(
    target: Target,
    images: Tensor,
    labels: Tensor,
    loss: Loss,
    generator: torch.Generator | None,
    route: Role | None,
    draws: int,
    share: int,
) -> Ascent:
    parts, seen = [], 0
    while seen < draws:
        part = min(share, draws - seen)
        with torch.enable_grad():
            leaf = images.detach().requires_grad_()
            logits = target.logits(leaf, route, part, generator)
            losses = loss(logits, labels).mean(0)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        look = Ascent(gradient, mean_margin(logits, labels), losses.detach())
        if len(logits) < part:  # no noise here: one pass says it all
            return look
        parts.append((part / draws, look))
        seen += part
    gradient, margins, losses = (torch.stack([weight * look[i] for weight, look in parts]).sum(0) for i in range(3))
    return Ascent(gradient, margins, losses)

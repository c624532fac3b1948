"""What every attack promises, kept in one place: an attack writes `perturb`, the base class keeps the promise."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from twoprong.attacks.norms import NORMS, Norm
from twoprong.data.tensors import check_images, check_labels
from twoprong.errors import InputError

Model = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AttackResult:
    """The whole batch after an attack, in order: images in [0,1] and in the ball, and who is now misclassified."""

    images: Tensor
    success: Tensor

    @property
    def accuracy(self) -> float:
        """The share of images still classified as they should be."""
        return 1 - self.success.double().mean().item()


@dataclass(frozen=True, kw_only=True)
class Attack(ABC):
    """Called with a classifier, images (N, C, H, W) in [0,1] and their true labels; returns an AttackResult.

    Promises: every image within `eps` of its original and in [0,1]; the whole batch, in order; the same result for the
    same generator; the model in eval mode meanwhile, its buffers and gradients untouched, its modes put back.
    """

    eps: float = 8 / 255
    norm: str = "linf"

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise InputError(f"norm: expected one of {', '.join(NORMS)}, got {self.norm!r}")
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if kind is float and not (number and 0 <= value < float("inf")):
                raise InputError(f"{field.name}: expected a number of 0 or more, got {value!r}")
            if kind is int and not (number and isinstance(value, int) and value >= 1):
                raise InputError(f"{field.name}: expected a whole number of 1 or more, got {value!r}")

    @property
    def ball(self) -> Norm:
        return NORMS[self.norm]

    def __call__(
        self, model: Model, images: Tensor, labels: Tensor, generator: torch.Generator | None = None
    ) -> AttackResult:
        images = check_images(images).detach()
        labels = check_labels(labels, len(images))
        with evaluating(model):
            found = self.perturb(model, images, labels, generator).detach()
            found = self.ball.project(found, images, self.eps)
            with torch.no_grad():
                success = model(found).argmax(1) != labels
        return AttackResult(found, success)

    @abstractmethod
    def perturb(self, model: Model, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        """Adversarial images for the batch; the caller projects them once more."""

    def ascend(self, images: Tensor, start: Tensor, steps: int, step: float, objective: Model) -> Tensor:
        """`steps` projected steps of size `step` up an objective given per image, from `start`."""
        x = start
        for _ in range(steps):
            x = self.ball.project(x + step * self.ball.direction(gradient(objective, x)), images, self.eps)
        return x


def gradient(objective: Model, images: Tensor) -> Tensor:
    """∂ Σ objective(images) / ∂ images, touching no parameter's `.grad`."""
    with torch.enable_grad():
        leaf = images.detach().requires_grad_()
        return torch.autograd.grad(objective(leaf).sum(), leaf)[0]


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Every sub-module in eval mode for a block, and each put back into its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()] if isinstance(model, nn.Module) else []
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode

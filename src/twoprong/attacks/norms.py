"""Balls around an image, as objects: how to start in one, step in one, and get back into one."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

SMALL = 1e-12  # keeps the direction of a zero gradient finite


class Norm(ABC):
    """A norm on images (N, C, H, W), image by image. Results of `project` are also kept inside [0, 1]."""

    name: str

    @abstractmethod
    def size(self, delta: Tensor) -> Tensor:
        """The norm of every image's perturbation, of shape (N,)."""

    @abstractmethod
    def random(self, images: Tensor, eps: float, generator: torch.Generator | None) -> Tensor:
        """A random perturbation inside the ball: uniform for linf; of uniform direction and length for l2."""

    @abstractmethod
    def direction(self, gradient: Tensor) -> Tensor:
        """The unit step along which the gradient rises fastest."""

    @abstractmethod
    def shrink(self, delta: Tensor, eps: float) -> Tensor:
        """The nearest perturbation inside the ball."""

    def project(self, images: Tensor, origin: Tensor, eps: float) -> Tensor:
        """Bring images back into the ball around `origin` and into [0, 1].

        `origin` lies in [0, 1], so cutting values off moves every pixel towards it and does not leave the ball.
        """
        return (origin + self.shrink(images - origin, eps)).clamp(0, 1)


class Linf(Norm):
    name = "linf"

    def size(self, delta: Tensor) -> Tensor:
        return delta.flatten(1).abs().amax(1)

    def random(self, images: Tensor, eps: float, generator: torch.Generator | None) -> Tensor:
        return torch.empty_like(images).uniform_(-eps, eps, generator=generator)

    def direction(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def shrink(self, delta: Tensor, eps: float) -> Tensor:
        return delta.clamp(-eps, eps)


class L2(Norm):
    name = "l2"

    def size(self, delta: Tensor) -> Tensor:
        return delta.flatten(1).norm(dim=1)

    def random(self, images: Tensor, eps: float, generator: torch.Generator | None) -> Tensor:
        ray = torch.empty_like(images).normal_(generator=generator)
        radius = torch.empty_like(images[:, :1, :1, :1]).uniform_(0, 1, generator=generator)
        # A uniform draw from a ball of many dimensions lies on its surface, a poor place to start from.
        return self.direction(ray) * eps * radius

    def direction(self, gradient: Tensor) -> Tensor:
        # Scaled to 1 first: a confident model's gradient is so small that its square, or SMALL, would swallow it.
        scaled = gradient / Linf().size(gradient)[:, None, None, None].clamp_min(torch.finfo(gradient.dtype).tiny)
        return scaled / self._per_image(scaled).clamp_min(SMALL)

    def shrink(self, delta: Tensor, eps: float) -> Tensor:
        return delta * (eps / self._per_image(delta).clamp_min(SMALL)).clamp_max(1)

    def _per_image(self, delta: Tensor) -> Tensor:
        return self.size(delta)[:, None, None, None]


NORMS: dict[str, Norm] = {norm.name: norm for norm in (Linf(), L2())}

"""The objectives of adversarial training, on logits of clean images and of their adversarial counterparts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from twoprong.attacks.losses import cross_entropy

Forward = Callable[[Tensor], Tensor]


class Method(ABC):
    """One way of adversarial training: what the attacker inside the loop ascends, and what the model descends."""

    def inner(self, adversarial: Tensor, clean: Tensor, labels: Tensor) -> Tensor:
        """The attacker's loss (N,), on logits."""
        return cross_entropy(adversarial, labels)

    @abstractmethod
    def loss(self, forward: Forward, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        """The training loss, a scalar. `forward` is the model in training mode, called once per kind of image.

        Clean and adversarial images pass separately, so batch norm never mixes their statistics in one batch; its running
        averages see whatever passes here, which is what the model will be fed.
        """

    def backward(self, model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        """Leave the loss's gradients in the parameters; the loss itself is returned."""
        loss = self.loss(model, images, adversarial, labels)
        loss.backward()
        return loss.detach()


class AT(Method):
    """CE(f(x'), y) (Madry et al. 2018)."""

    def loss(self, forward: Forward, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(forward(adversarial), labels)


@dataclass(frozen=True)
class TRADES(Method):
    """CE(f(x), y) + β·KL(f(x) ‖ f(x')); the attacker ascends the KL (Zhang et al. 2019)."""

    beta: float = 6.0

    def inner(self, adversarial: Tensor, clean: Tensor, labels: Tensor) -> Tensor:
        return divergence(clean, adversarial)

    def loss(self, forward: Forward, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        clean = forward(images)
        return F.cross_entropy(clean, labels) + self.beta * divergence(clean, forward(adversarial)).mean()


@dataclass(frozen=True)
class MART(Method):
    """-log p'_y - log(1 - max_{k≠y} p'_k) + β·KL(p ‖ p')·(1 - p_y), with p = f(x), p' = f(x') (Wang et al. 2020)."""

    beta: float = 5.0

    def loss(self, forward: Forward, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        clean, attacked = forward(images), forward(adversarial)
        column = labels[:, None]
        rival = attacked.scatter(1, column, float("-inf")).argmax(1, keepdim=True)
        # log(1 - p'_rival) as the log of the sum of all the others: exact also where p'_rival rounds to 1.
        others = F.log_softmax(attacked, 1).scatter(1, rival, float("-inf")).logsumexp(1)
        boosted = cross_entropy(attacked, labels) - others
        doubt = 1 - F.softmax(clean, 1).gather(1, column).squeeze(1)
        return (boosted + self.beta * divergence(clean, attacked) * doubt).mean()


@dataclass(frozen=True)
class AWP(Method):
    """`method` at adversarially perturbed weights (Wu et al. 2020).

    Every weight tensor of two or more dimensions is moved by γ‖w‖ along its own gradient, the loss's gradients are taken
    there, and the weights are put back. Biases and batch norm's scales stay where they are.
    """

    method: Method = field(default_factory=TRADES)
    gamma: float = 5e-3

    def inner(self, adversarial: Tensor, clean: Tensor, labels: Tensor) -> Tensor:
        return self.method.inner(adversarial, clean, labels)

    def loss(self, forward: Forward, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        return self.method.loss(forward, images, adversarial, labels)

    def backward(self, model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        # The look for the direction runs on copies of the buffers: batch norm's averages move once a step, not twice.
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        loss = self.loss(lambda x: functional_call(model, buffers, (x,)), images, adversarial, labels)
        gradients = torch.autograd.grad(loss, weights)
        with moved(weights, gradients, self.gamma):
            return super().backward(model, images, adversarial, labels)


@contextmanager
def moved(weights: list[nn.Parameter], gradients: tuple[Tensor, ...], gamma: float) -> Iterator[None]:
    """For a block, the weights moved by gamma of their norm along the gradients; then put back, bit for bit."""
    kept = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.add_(gamma * weight.norm() / gradient.norm().clamp_min(1e-12) * gradient)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(value)


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """KL(softmax(one) ‖ softmax(other)), image by image."""
    first, second = F.log_softmax(one, 1), F.log_softmax(other, 1)
    return (first.exp() * (first - second)).sum(1)


METHODS: dict[str, Method] = {"at": AT(), "trades": TRADES(), "mart": MART(), "trades-awp": AWP()}

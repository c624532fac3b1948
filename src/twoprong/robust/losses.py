"""The objectives of adversarial training, on logits of clean images and of their adversarial counterparts."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twoprong.attacks.losses import cross_entropy

Forward = Callable[[Tensor], Tensor]


class Method(ABC):
    """One way of adversarial training: what the attacker inside the loop ascends, and what the model descends."""

    attacked: bool = True  # whether the loss looks at adversarial images at all

    def inner(self, adversarial: Tensor, clean: Tensor, labels: Tensor) -> Tensor:
        """The attacker's loss (N,), on logits."""
        return cross_entropy(adversarial, labels)

    @abstractmethod
    def loss(self, forward: Forward, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        """The training loss, a scalar. `forward` is the model in training mode, called once per kind of image.

        Clean and adversarial images pass separately, so batch norm never mixes their statistics in one batch; its running
        averages see whatever passes here, which is what the model will be fed.
        """

    def gradients(self, model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """The loss and its gradients, one for each of the model's parameters."""
        loss = self.loss(model, images, adversarial, labels)
        return (loss.detach(), *torch.autograd.grad(loss, list(model.parameters())))

    def backward(self, model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        """Leave the loss's gradients in the parameters; the loss itself is returned."""
        loss, *gradients = self.gradients(model, images, adversarial, labels)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        return loss


@dataclass(frozen=True)
class Natural(Method):
    """CE(f(x), y) with smoothed labels: ordinary training, for the accurate network beside the robust one."""

    smoothing: float = 0.1
    attacked = False

    def loss(self, forward: Forward, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(forward(images), labels, label_smoothing=self.smoothing)


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


@dataclass(frozen=True, eq=False)
class HAT(Method):
    """TRADES + γ·CE(f(x + h(x' - x)), argmax helper(x')) (Rade & Moosavi-Dezfooli 2022, "Reducing excessive margin").

    `helper` is an accurate network without robustness: what it takes x' for is the class towards which the attack goes, and
    the model may change its mind that far out. That keeps margins from growing where they only cost accuracy. The defaults
    are the paper's for a ResNet-18 on CIFAR-10 at 8/255.
    """

    helper: nn.Module
    beta: float = 2.5
    gamma: float = 0.5
    reach: float = 2.0  # h

    def inner(self, adversarial: Tensor, clean: Tensor, labels: Tensor) -> Tensor:
        return divergence(clean, adversarial)

    def loss(self, forward: Forward, images: Tensor, adversarial: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            named = self.helper(adversarial).argmax(1)
        trades = TRADES(self.beta).loss(forward, images, adversarial, labels)
        beyond = images + self.reach * (adversarial - images)  # outside [0, 1] here and there, as in the paper
        return trades + self.gamma * F.cross_entropy(forward(beyond), named)


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

    def gradients(self, model: nn.Module, images: Tensor, adversarial: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        with kept(model.buffers()):  # batch norm's averages move once a step, not twice
            gradients = torch.autograd.grad(self.loss(model, images, adversarial, labels), weights)
        with moved(weights, gradients, self.gamma):
            return super().gradients(model, images, adversarial, labels)


@contextmanager
def moved(weights: list[nn.Parameter], gradients: tuple[Tensor, ...], gamma: float) -> Iterator[None]:
    """For a block, the weights moved by gamma of their norm along the gradients; then put back, bit for bit."""
    with kept(weights):
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.add_(gamma * weight.norm() / gradient.norm().clamp_min(1e-12) * gradient)
        yield


@contextmanager
def kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Whatever a block does to the tensors, they come out of it as they went in, bit for bit."""
    places = [tensor.detach() for tensor in tensors]
    values = [place.clone() for place in places]
    try:
        yield
    finally:
        for place, value in zip(places, values, strict=True):
            place.copy_(value)


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """KL(softmax(one) ‖ softmax(other)), image by image."""
    first, second = F.log_softmax(one, 1), F.log_softmax(other, 1)
    return (first.exp() * (first - second)).sum(1)


METHODS: dict[str, Method] = {"at": AT(), "trades": TRADES(), "mart": MART(), "trades-awp": AWP()}

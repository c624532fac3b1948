"""The attacker inside a training: PGD on a frozen view of the network, compiled and recorded where there is a GPU.

An adversarial training spends most of its time here. What makes it fast: no gradient of a weight is ever computed, the
network runs in bf16, and all steps together are one launch.
"""

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from twoprong.attacks.norms import NORMS
from twoprong.config import AttackConfig
from twoprong.models.fast import Compiler, Replayed
from twoprong.models.precision import Precision, computing

Inner = Callable[[Tensor, Tensor, Tensor], Tensor]  # logits of adversarial and clean images, labels: a loss each


def view(model: nn.Module, compiler: Compiler | None = None) -> nn.Module:
    """The network in eval mode, frozen, compiled, on the same memory: it follows every update of the original at no cost.

    A compiled backward pass computes the gradient of everything that asks for one; here only the images do.
    """
    memo = {id(buffer): buffer for buffer in model.buffers()}
    memo |= {id(weight): nn.Parameter(weight.detach(), requires_grad=False) for weight in model.parameters()}
    frozen = copy.deepcopy(model, memo).eval()
    return frozen if compiler is None else cast(nn.Module, compiler(frozen, dynamic=False))


class InnerAttack:
    """Projected gradient ascent of `inner` from a random start, on batches of one size.

    `network` is a frozen view: batch norm acts with its running averages, as in deployment. If `recorded`, all steps are one
    CUDA graph, recorded for every batch size that comes.
    """

    def __init__(self, network: nn.Module, inner: Inner, attack: AttackConfig, precision: Precision, recorded: bool) -> None:
        self.network, self.inner, self.attack, self.precision = network, inner, attack, precision
        self.climb: Callable[..., tuple[Tensor, ...]] = Replayed(self._climb) if recorded else self._climb

    def __call__(self, images: Tensor, labels: Tensor, draw: torch.Generator) -> Tensor:
        """Adversarial images for the batch, inside the ball and in [0, 1]."""
        start = NORMS[self.attack.norm].random(images, self.attack.eps, draw)
        return self.climb(images, labels, start)[0]

    def _climb(self, images: Tensor, labels: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        ball, eps = NORMS[self.attack.norm], self.attack.eps
        with computing(self.precision, images.device):
            with torch.no_grad():
                clean = self.network(images)
            x = ball.project(images + start, images, eps)
            for _ in range(self.attack.steps):
                leaf = x.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(self.inner(self.network(leaf), clean, labels).sum(), leaf)
                x = ball.project(x + self.attack.step * ball.direction(gradient), images, eps)
        return (x.detach(),)

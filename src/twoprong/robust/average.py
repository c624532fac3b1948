"""The running average of a network's weights over a training: flatter, more robust, and steadier than any one epoch."""

import copy

import torch
from torch import Tensor, nn


class Average:
    """w̄ ← d·w̄ + (1 - d)·w after every step, batch norm's averages included (Gowal et al. 2020, "Uncovering the limits").

    d rises to `decay` from the first step on, as (1 + step) / (10 + step), so that the random start is soon forgotten.
    `model` is the average: a network of its own, in eval mode, frozen.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self._pairs = list(zip(_state(self.model), _state(model), strict=True))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the network as it is after `step` steps; counters are copied."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        real = [(mean, value) for mean, value in self._pairs if mean.is_floating_point()]
        torch._foreach_lerp_([mean for mean, _ in real], [value for _, value in real], share)
        for mean, value in self._pairs:
            if not mean.is_floating_point():
                mean.copy_(value)


def _state(model: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]

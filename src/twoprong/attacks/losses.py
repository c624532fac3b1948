"""Per-image losses that an attacker ascends, on logits (..., N, classes) and labels (N,)."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
LossName = Literal["ce", "margin", "dlr"]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(z)_y."""
    return -F.log_softmax(logits, -1).gather(-1, _column(logits, labels)).squeeze(-1)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """max_{j≠y} z_j - z_y: positive where the image is misclassified, zero for a tie."""
    column = _column(logits, labels)
    others = logits.scatter(-1, column, float("-inf")).amax(-1)
    return others - logits.gather(-1, column).squeeze(-1)


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """The difference of logits ratio (Croce & Hein 2020): margin / (z_(1) - z_(3)); it does not care for scale.

    With fewer than three classes there is no third logit, and the plain margin is used.
    """
    if logits.shape[-1] < 3:
        return margin(logits, labels)
    ranked = logits.topk(3, -1).values
    return margin(logits, labels) / (ranked[..., 0] - ranked[..., 2] + 1e-12)


LOSSES: dict[LossName, Loss] = {"ce": cross_entropy, "margin": margin, "dlr": dlr}


def _column(logits: Tensor, labels: Tensor) -> Tensor:
    return labels.expand(logits.shape[:-1]).unsqueeze(-1)


def mean_margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The margin of each image averaged over the draws of (draws, N, classes): how far it is across, on average."""
    with torch.no_grad():
        return margin(logits, labels).mean(0)

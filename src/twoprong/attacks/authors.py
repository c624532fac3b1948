"""The adaptive attack of the paper's authors, as their public code has it where it differs from Algorithm 3."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twoprong.attacks.paper import Paper
from twoprong.attacks.target import Role, Target
from twoprong.config import Flag, NotNegative, Number


@dataclass(frozen=True, kw_only=True)
class Authors(Paper):
    """Algorithm 3 from a random start, by steps of 2/255 in either norm, with the denoiser left in training mode.

    There batch norms take the statistics of the noisy batch, which is not what is deployed. The statistic is the detector's
    own kind on the features that it sees: of a defence by the preset `authors`, the biased one on another network's.
    """

    step: NotNegative | None = 2 / 255
    threshold: Number | None = 0.05
    random_start: Flag = True

    def seen(self, target: Target) -> Target:
        return _Training(target)


class _Training:
    """A target whose flagged route computes in training mode; what has no denoiser is as it was."""

    def __init__(self, target: Target) -> None:
        self.target = target
        learner = getattr(target, "in_training", None)
        self.flagged = None if learner is None else learner()

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        if route != "flagged" or self.flagged is None:
            return self.target.logits(images, route, draws, generator)
        logits: Tensor = self.flagged.logits(images, draws, generator)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

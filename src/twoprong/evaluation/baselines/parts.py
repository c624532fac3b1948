"""The test without the flagged route, as a baseline. One route without the test is `whitebox.OneRoute`."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twoprong.attacks.target import Role
from twoprong.defense import Defense
from twoprong.detect.kernel import Sample


@dataclass(frozen=True)
class Refusal:
    """An outcome in which some images (`rejected`) get no answer."""

    logits: Tensor
    rejected: Tensor
    adversarial: bool
    statistic: float
    threshold: float


class Rejecting(nn.Module):
    """The first prong without the second: a flagged batch is refused. Test and passing route are the defence's own."""

    coupled = True
    routes: tuple[Role, ...] = ("passing",)

    def __init__(self, defense: Defense) -> None:
        super().__init__()
        self.defense = defense

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.defense.logits(images, "passing", draws, generator)

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        return self.defense.statistic(images, reference)

    def threshold(self, size: int) -> float:
        return self.defense.threshold(size)

    @torch.no_grad()
    def decide(self, images: Tensor, generator: torch.Generator | None = None) -> Refusal:
        verdict = self.defense.detector(Sample(images, self.defense.embed(images)))
        rejected = torch.full((len(images),), verdict.adversarial, device=images.device)
        logits = self.logits(images, None, 1, generator)[0]
        return Refusal(logits, rejected, verdict.adversarial, verdict.statistic, verdict.threshold)

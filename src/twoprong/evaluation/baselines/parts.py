"""Parts of a defence by themselves, as baselines: one route without the test, and the test without the flagged route."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twoprong.attacks.target import Plain, PlainOutcome, Role
from twoprong.defense import Defense


class OneRoute(Plain):
    """Every batch takes one route, nothing is tested; with the flagged one, the second prong without the first."""

    def __init__(self, defense: Defense, role: Role) -> None:
        super().__init__(defense.classifier)
        self.defense, self.role, self.routes = defense, role, (role,)

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.defense.logits(images, self.role, draws, generator)

    @torch.no_grad()
    def decide(self, images: Tensor, generator: torch.Generator | None = None) -> PlainOutcome:
        return PlainOutcome(self.logits(images, None, 1, generator)[0])

    def restored(
        self, images: Tensor, route: Role = "flagged", draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        return self.defense.restored(images, self.role, draws, generator)

    def classified(self, seen: Tensor, route: Role = "flagged") -> Tensor:
        return self.defense.classified(seen, self.role)

    def modules(self) -> list[nn.Module]:
        return list(self.defense.modules())


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
        statistic = self.statistic(images).item()
        flagged = self.defense.detector.flags(statistic, len(images))
        rejected = torch.full((len(images),), flagged, device=images.device)
        logits = self.logits(images, None, 1, generator)[0]
        return Refusal(logits, rejected, flagged, statistic, self.threshold(len(images)))

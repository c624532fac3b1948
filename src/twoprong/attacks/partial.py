"""`partial`: any attack, on k of the batch's n slots; the others hold other people's clean images."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from twoprong.attacks.base import Attack
from twoprong.attacks.pgd import PGD
from twoprong.attacks.target import Outcome, PlainOutcome, Role, Target, transparent
from twoprong.errors import InputError


class Slots:
    """A Target seen by somebody who controls some slots of the batch: what goes in and what is scored are those slots."""

    def __init__(self, target: Target, images: Tensor, slots: Tensor) -> None:
        self.target, self.images, self.slots = target, images, slots
        self.coupled, self.routes = target.coupled, target.routes

    def whole(self, mine: Tensor) -> Tensor:
        """The full batch with the controlled slots filled in."""
        return self.images.index_copy(0, self.slots, mine)

    def logits(
        self, images: Tensor, route: Role | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        if route == "passing":  # classified one by one: the others need no pass
            return self.target.logits(images, route, draws, generator)
        return self.target.logits(self.whole(images), route, draws, generator)[:, self.slots]

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        return self.target.statistic(self.whole(images), self.images if reference is not None else None)

    def threshold(self, size: int) -> float:
        return self.target.threshold(len(self.images))

    def decide(self, images: Tensor, generator: torch.Generator | None = None) -> Outcome:
        whole = self.target.decide(self.whole(images), generator)
        return PlainOutcome(whole.logits[self.slots], whole.adversarial, whole.statistic, whole.threshold)

    def witness(self, images: Tensor, others: Tensor) -> Tensor:
        """Conspicuousness in the whole batch, whatever part of it the attack knows."""
        return transparent(self.target).witness(images, self.images)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


@dataclass(frozen=True, kw_only=True)
class Partial(Attack):
    """`attack` on a `share` of the slots (at least one), drawn at random. Ball and budget are the inner attack's."""

    attack: Attack = field(default_factory=PGD)
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"share: expected a number above 0, at most 1, got {self.share!r}")
        object.__setattr__(self, "eps", self.attack.eps)
        object.__setattr__(self, "norm", self.attack.norm)
        super().__post_init__()

    def slots(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        """The slots of a batch that are attacked."""
        order = torch.randperm(len(images), generator=generator, device=images.device)
        return order[: max(1, round(self.share * len(images)))].sort().values

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        slots = self.slots(images, generator)
        view = Slots(target, images, slots)
        mine = self.attack.perturb(view, images[slots], labels[slots], generator)
        mine = self.ball.project(mine.detach(), images[slots], self.eps)
        return view.whole(mine)

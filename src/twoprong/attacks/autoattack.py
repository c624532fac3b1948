"""AutoAttack (Croce & Hein 2020): a fixed sequence of attacks without a setting to get wrong."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.apgd import APGD, APGDDLR, APGDT, Survivors
from twoprong.attacks.base import Attack
from twoprong.attacks.fab import FABT
from twoprong.attacks.losses import mean_margin
from twoprong.attacks.square import Square
from twoprong.attacks.target import Target
from twoprong.config import Count


@dataclass(frozen=True, kw_only=True)
class Sequence(Attack):
    """Attacks one after the other.

    Where images are judged one by one, each attack sees only those that the ones before it could not fool. Behind a batch
    test each attacks the whole batch, and the batch that the deployed object handles worst is kept: most images across,
    then the highest mean margin, over `draws` of its noise.
    """

    draws: Count = 1

    @abstractmethod
    def attacks(self) -> tuple[Attack, ...]:
        """What to run, in order."""

    def perturb(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        best = Survivors(target, images)
        best.offer(images, self._margins(target, images, labels, generator))
        for attack in self.attacks():
            index = best.left
            if len(index) == 0:
                break
            originals, own = images[index], labels[index]
            found = attack.perturb(target, originals, own, generator).detach()
            found = self.ball.project(found, originals, self.eps)
            best.offer_at(index, found, self._margins(target, found, own, generator))
        return best.images

    @torch.no_grad()
    def _margins(self, target: Target, images: Tensor, labels: Tensor, generator: torch.Generator | None) -> Tensor:
        return mean_margin(target.logits(images, None, self.draws, generator), labels)


@dataclass(frozen=True, kw_only=True)
class AutoAttack(Sequence):
    """The `standard` version: APGD-CE, APGD-T, FAB-T and Square; `square_steps` is for the last, `steps` for the others."""

    steps: Count = 100
    square_steps: Count = 5000
    targets: Count = 9

    def attacks(self) -> tuple[Attack, ...]:
        return (
            APGD(eps=self.eps, norm=self.norm, steps=self.steps, draws=self.draws),
            APGDT(eps=self.eps, norm=self.norm, steps=self.steps, draws=self.draws, targets=self.targets),
            FABT(eps=self.eps, norm=self.norm, steps=self.steps, targets=self.targets),
            Square(eps=self.eps, norm=self.norm, steps=self.square_steps, draws=self.draws),
        )


@dataclass(frozen=True, kw_only=True)
class AutoAttackRand(Sequence):
    """The `rand` version, for targets with noise: APGD-CE and APGD-DLR, every step averaged over `draws`."""

    steps: Count = 100
    draws: Count = 20

    def attacks(self) -> tuple[Attack, ...]:
        return (
            APGD(eps=self.eps, norm=self.norm, steps=self.steps, draws=self.draws),
            APGDDLR(eps=self.eps, norm=self.norm, steps=self.steps, draws=self.draws),
        )

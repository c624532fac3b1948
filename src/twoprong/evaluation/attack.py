"""An attack over a data set, batch by batch, scored on fresh draws of the defence's noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, AttackResult, Model
from twoprong.attacks.partial import Partial
from twoprong.attacks.target import as_target
from twoprong.data.tensors import Labelled
from twoprong.evaluation.accelerated import accelerated
from twoprong.evaluation.subjects import DRAWS
from twoprong.models.modes import evaluating
from twoprong.models.precision import Precision
from twoprong.progress import Progress, silent
from twoprong.seeds import generator


@dataclass(frozen=True)
class Attacked:
    """One batch after an attack. `correct` (draws, N) says who was classified correctly in each draw of the noise.

    `slots` marks the images that the attacker controlled: all of them, but for a partial attack. `flagged` and `statistic`
    are the deployed object's, in its own precision, whatever the attack computed in.
    """

    result: AttackResult
    labels: Tensor
    correct: Tensor
    slots: Tensor
    flagged: bool
    statistic: float

    @property
    def accuracy(self) -> float:
        """The share classified correctly, on the mean draw."""
        return self.correct.double().mean().item()

    @property
    def worst_draw(self) -> float:
        return self.correct.double().mean(1).min().item()


def attack_batches(
    attack: Attack,
    model: Model,
    data: Labelled,
    size: int,
    seed: int,
    progress: Progress = silent,
    precision: Precision = "fp32",
) -> list[Attacked]:
    """Attack the images in order, in batches of `size` (the last may be smaller), each with a stream of its own.

    The attack computes in `precision`; scoring does not.
    """
    target, attacked, done = as_target(model), accelerated(model, precision, data.images), []
    starts = range(0, len(data), size)
    for number, start in enumerate(starts):
        part = data[start : start + size]
        device = part.images.device
        draw = generator(seed, "attack", number, device=device)
        result = attack(attacked, part.images, part.labels, draw)
        with evaluating(target):
            outcomes = [target.decide(result.images, draw) for _ in range(DRAWS)]
        correct = torch.stack([outcome.logits.argmax(1) == part.labels for outcome in outcomes])
        slots = torch.ones(len(part), dtype=torch.bool, device=device)
        if isinstance(attack, Partial):  # the first thing that it draws
            slots = torch.zeros_like(slots)
            slots[attack.slots(part.images, generator(seed, "attack", number, device=device))] = True
        done.append(Attacked(result, part.labels, correct, slots, outcomes[0].adversarial, outcomes[0].statistic))
        progress("attack", number + 1, len(starts), f"{done[-1].accuracy:.1%} left")
    return done

"""An attack over a data set, batch by batch, scored on fresh draws of the defence's noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.base import Attack, AttackResult, Model, evaluating
from twoprong.attacks.target import as_target
from twoprong.data.tensors import Labelled
from twoprong.progress import Progress, silent
from twoprong.seeds import generator

DRAWS = 10  # noise draws that every attacked batch is scored on


@dataclass(frozen=True)
class Attacked:
    """One batch after an attack. `correct` (draws, N) says who was classified correctly in each draw of the noise."""

    result: AttackResult
    labels: Tensor
    correct: Tensor

    @property
    def accuracy(self) -> float:
        """The share classified correctly, on the mean draw."""
        return self.correct.double().mean().item()

    @property
    def worst_draw(self) -> float:
        return self.correct.double().mean(1).min().item()


def attack_batches(
    attack: Attack, model: Model, data: Labelled, size: int, seed: int, progress: Progress = silent
) -> list[Attacked]:
    """Attack the images in order, in batches of `size` (the last may be smaller), each with a stream of its own."""
    target, done = as_target(model), []
    starts = range(0, len(data), size)
    for number, start in enumerate(starts):
        part = data[start : start + size]
        draw = generator(seed, "attack", number, device=part.images.device)
        result = attack(target, part.images, part.labels, draw)
        with evaluating(target), torch.no_grad():
            correct = [target.decide(result.images, draw).logits.argmax(1) == part.labels for _ in range(DRAWS)]
        done.append(Attacked(result, part.labels, torch.stack(correct)))
        progress("attack", number + 1, len(starts), f"{done[-1].accuracy:.1%} left")
    return done

"""How a defence does on batches it has not seen, clean and attacked, beside the bare classifier."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.data.tensors import Labelled
from twoprong.defense import Defense
from twoprong.models.train import accuracy


@dataclass(frozen=True)
class Scores:
    """One kind of batches (all clean, or all attacked) through bare classifier and defence.

    `bare` and `defended` are accuracies, `flagged` the share of batches called adversarial, `statistics` one per batch.
    """

    batches: int
    bare: float
    defended: float
    flagged: float
    threshold: float
    statistics: list[float]


def score(defense: Defense, data: Labelled, size: int, rounds: int, draw: torch.Generator) -> Scores:
    """Scores over batches of `size` from `rounds` random partitions of the images; leftovers of a partition are dropped.

    Noise is drawn anew for every batch, so each image meets up to `rounds` draws. `draw` is on the images' device.
    """
    hits, flags, statistics, threshold = 0, 0, [], math.nan
    for _ in range(rounds):
        for batch in partition(len(data), size, draw):
            part = data[batch]
            decision = defense(part.images, draw)
            hits += int((decision.labels == part.labels).sum())
            flags += decision.adversarial
            statistics.append(decision.statistic)
            threshold = decision.threshold
    count = len(statistics)
    return Scores(count, accuracy(defense.classifier, data), hits / (count * size), flags / count, threshold, statistics)


def partition(count: int, size: int, draw: torch.Generator) -> list[Tensor]:
    """Index batches of exactly `size`, every index at most once, in random order."""
    return list(torch.randperm(count, generator=draw, device=draw.device).split(size))[: count // size]


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval (95 % by default) for a share of independent trials."""
    if count == 0:
        return 0.0, 1.0
    share, z2 = hits / count, z * z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)

"""How a defence does on batches it has not seen, clean and attacked, beside the bare classifier."""

import math
from collections.abc import Sequence
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


def wilson(hits: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval (95 % by default) for a share of independent trials."""
    if count == 0:
        return 0.0, 1.0
    share, z2 = hits / count, z * z
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def over_batches(hits: Sequence[float], counts: Sequence[int]) -> tuple[float, float] | None:
    """A 95 % interval for the share Σhits/Σcounts where the images of a batch hang together; None below three batches.

    Wilson's, for the effective number n / deff, where deff (at least 1) is the variance of the share over batches in units
    of that of independent images, and with Student's t for what few batches know of it (as Korn and Graubard, 1998). Where
    all are right or all are wrong the batches' spread says nothing: then a batch counts as one.
    """
    batches, images = len(counts), sum(counts)
    if batches < 3:
        return None
    share = sum(hits) / images
    alone = share * (1 - share) / images
    spread = sum((hit - share * count) ** 2 for hit, count in zip(hits, counts, strict=True))
    together = batches / (batches - 1) * spread / images**2
    effective = batches if alone == 0 else images / max(1.0, together / alone)
    return wilson(share * effective, effective, _student(batches - 1))


def _student(freedom: int, z: float = 1.96) -> float:
    """Student's t at z's level: Fisher's expansion in 1/freedom, within 1 % from 2 degrees on."""
    return z + sum(
        (
            (z**3 + z) / (4 * freedom),
            (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2),
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3),
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * freedom**4),
        )
    )

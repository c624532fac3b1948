"""How often unseen clean batches are flagged, and their p-values: python tools/clean_rates.py BUNDLE CIFAR_ROOT

On the CIFAR-10 test images that do not come with the package, in random partitions into batches: disjoint within a round.
"""

import sys
from pathlib import Path

import torch

import twoprong as tp
from twoprong.data import load_data
from twoprong.errors import TwoprongError
from twoprong.evaluation.detector.study import SIZES, Pool
from twoprong.measure import partition
from twoprong.seeds import generator

SHIPPED = 500  # the first test images come with the package
LEAST = 4000  # batches per size: as many rounds as it takes


def rates(defense: tp.Defense, images: torch.Tensor, sizes: tuple[int, ...] = SIZES, least: int = LEAST) -> list[str]:
    """A row of a table per batch size."""
    pool, detector = Pool(defense, images), defense.detector
    lines = ["| batch size | batches | disjoint | flagged | p <= 0.05 | p <= 0.5 |", "|---|---:|---:|---:|---:|---:|"]
    for size in (size for size in sizes if size in detector.batch_sizes):
        draw, verdicts = generator(0, "clean rates", size), []
        while len(verdicts) < least:
            found = (pool.statistic(batch) for batch in partition(len(images), size, draw))
            verdicts += [detector.verdict(value, 0, size) for value in found]
        flagged = sum(verdict.adversarial for verdict in verdicts) / len(verdicts)
        low, half = (sum(verdict.p_value <= level for verdict in verdicts) / len(verdicts) for level in (0.05, 0.5))
        lines.append(f"| {size} | {len(verdicts)} | {len(images) // size} | {flagged:.1%} | {low:.1%} | {half:.1%} |")
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print("\n".join(rates(tp.load(sys.argv[1]), load_data("cifar10", Path(sys.argv[2])).test.images[SHIPPED:])))
    except TwoprongError as error:
        sys.exit(f"error: {error}")

"""The limit of blame, from batches of held-out images of which some are attacked: few clean images may reach it.

For every share of attacked images, none included, the clean images of flagged batches are counted, over all sizes. The
lowest limit that blames no more of them than was asked for, of each share and in all, is taken. Clean batches that were
flagged by chance are the hardest kind: something in them is unusual.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from twoprong.config import DetectorConfig
from twoprong.detect.blame import Batch, Blame, Examples, blamed, learn_score
from twoprong.detect.calibrate import allowance
from twoprong.detect.kernel import Sample
from twoprong.detect.mmd import off_diagonal_mean

SIZES = (25, 50, 100)
SHARES = (0.0, 0.05, 0.1, 0.2, 0.5)
BATCHES = 20  # of each size and share
CLEAN_BATCHES = 200  # of those without attacked images, because few of them are flagged
FEWEST = 10  # flagged batches: a kind of mixture with fewer says nothing by itself
TRIED = 20  # limits


class Test(NamedTuple):
    """The batch test that there is already."""

    gram: Callable[[Sample, Sample], Tensor]
    reference: Sample
    within: Tensor  # the mean kernel within the reference
    flags: Callable[[float, int], bool]
    sizes: range


class Mixture(NamedTuple):
    """A flagged batch; its last images are attacked, `clean` come before."""

    batch: Batch
    clean: int


def fit_blame(test: Test, clean: Sample, examples: Examples, config: DetectorConfig, generator: torch.Generator) -> Blame:
    """A score learned from `examples`, with a limit calibrated on `clean` images that nothing has been learned from."""
    first, bad = (test.gram(test.reference, part).mean(0) for part in examples)
    filters, weights = learn_score(examples.clean.pixels, first, examples.attacked.pixels, bad)
    pool = Sample(*(torch.cat(both) for both in zip(clean, examples.attacked, strict=True)))
    near = torch.cat([test.gram(test.reference, clean).mean(0), bad])
    blame = Blame(filters, weights, torch.zeros((), dtype=torch.double))
    scores, k = blame.score(pool.pixels, near), test.gram(pool, pool)

    def look(index: Tensor) -> tuple[Batch, float]:
        batch = Batch(scores[index], near[index], k[index][:, index], test.within)
        return batch, (test.within + off_diagonal_mean(batch.k) - 2 * batch.near.mean()).item()

    found = [list(_flagged(test, len(clean), len(pool), share, look, generator)) for share in SHARES]
    kinds = [[one for kind in found for one in kind], *(kind for kind in found if len(kind) >= FEWEST)]
    rate = allowance(config.false_blame_rate, len(clean), config.confidence)
    levels = torch.linspace(1 - rate, 1, TRIED, dtype=torch.double)
    limits = torch.quantile(scores[: len(clean)].double(), levels.to(scores.device)).tolist()
    limit = next((one for one in limits if all(_false_blame(test, kind, one) <= rate for kind in kinds)), limits[-1])
    return Blame(filters, weights, torch.tensor(limit, dtype=torch.double, device=weights.device))


def _flagged(
    test: Test, clean: int, total: int, share: float, look: Callable[[Tensor], tuple[Batch, float]], draw: torch.Generator
) -> Iterator[Mixture]:
    """The flagged ones among batches of all sizes with this share of attacked images."""
    for size in (size for size in SIZES if size in test.sizes and size <= clean):
        many = round(share * size)
        for _ in range(BATCHES if many else CLEAN_BATCHES):
            calm = torch.randperm(clean, generator=draw)[: size - many]
            others = torch.randint(clean, total, (many,), generator=draw)
            batch, statistic = look(torch.cat([calm, others]))
            if test.flags(statistic, size):
                yield Mixture(batch, size - many)


def _false_blame(test: Test, kind: list[Mixture], limit: float) -> float:
    """The share of clean images that are blamed; none where no batch was flagged."""
    hit = sum(int(blamed(one.batch, limit, test.flags, test.sizes)[: one.clean].sum()) for one in kind)
    return hit / max(1, sum(one.clean for one in kind))

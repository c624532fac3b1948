"""Thresholds that keep a promised false-alarm rate on batches nobody has seen.

Two things shift the real rate away from the rate that was asked for:

- the reference is fixed, so the statistic's law is the one *given that reference*. It is met by calibrating against that
  very reference, with clean images that are not in it;
- the calibration pool is finite. Batches drawn from it without replacement vary less than fresh ones, and the pool itself
  lies to one side of the truth. The first is met by drawing batches with replacement (pairs of copies of one image are
  left out of the statistic: they would look like an attack), the second by an upper confidence bound over resampled pools.

Given the reference, MMD²_u of a batch is a U-statistic of the batch alone, with kernel u(a,b) = k(a,b) - c(a) - c(b), where
c is the mean kernel with the reference. Its quantile is measured once, on many batches from the pool. For a resampled
pool its mean and variance follow in closed form (Hoeffding), and the quantile is moved and scaled accordingly.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from twoprong.errors import InputError
from twoprong.progress import Progress, silent

BATCHES = 5000  # batches drawn per size: their quantile misses the wanted rate of 5 % by ± 0.3 points (one sigma)
POOLS = 1000  # resampled pools: what the confidence bound is a quantile of


class Thresholds(NamedTuple):
    """The table that calibration leaves, one row per measured batch size.

    `upper` is the threshold in force: with the requested confidence, no more than the requested share of unseen clean
    batches reach it. `central` is the best single estimate of the exact threshold, for judging how sure `upper` is.
    """

    sizes: Tensor
    upper: Tensor
    central: Tensor

    def at(self, size: int) -> float:
        """The threshold in force for a batch of `size`, linear in 1/size between measured sizes; InputError beyond."""
        if not len(self.sizes) or not self.sizes[0] <= size <= self.sizes[-1]:
            known = (
                f"{int(self.sizes[0])} to {int(self.sizes[-1])} images" if len(self.sizes) else "no size: calibrate first"
            )
            raise InputError(f"batch of {size} image{'s' * (size != 1)}: expected {known}, the sizes that are calibrated")
        return _interpolate(size, self.sizes, self.upper)


def calibrate(
    k_pool: Tensor,
    k_reference_pool: Tensor,
    within_reference: float,
    sizes: Tensor,
    rate: float,
    confidence: float,
    generator: torch.Generator,
    progress: Progress = silent,
) -> Thresholds:
    """Thresholds for MMD²_u (full cross mean) between a fixed reference and clean batches of the given sizes.

    `k_pool` is the calibration images' Gram matrix, `k_reference_pool` (reference × pool) their kernel with the reference,
    `within_reference` the reference's own off-diagonal mean.
    """
    u = centred(k_pool, k_reference_pool)
    count = len(u)
    pools = shares_of(torch.randint(count, (POOLS, count), generator=generator), count).to(u)
    here = _moments(u, torch.full((1, count), 1 / count).to(u))
    resampled = _moments(u, pools)
    upper, central = [], []
    for step, size in enumerate(sizes.tolist()):
        drawn = torch.randint(count, (BATCHES, size), generator=generator)
        quantile = torch.quantile(statistics(u, shares_of(drawn, count).to(u)), 1 - rate)
        standardised = (quantile - here.mean) / here.deviation(size)
        over_pools = resampled.mean + standardised * resampled.deviation(size)
        upper.append(torch.quantile(over_pools, confidence) + within_reference)
        central.append(quantile + within_reference)
        progress("calibrate", step + 1, len(sizes), f"batches of {size}")
    return Thresholds(sizes, torch.stack(upper).double().cpu(), torch.stack(central).double().cpu())


def measured_sizes(smallest: int, largest: int, ratio: float = 1.35) -> Tensor:
    """The batch sizes that are measured: both ends and a geometric grid between, dense enough to interpolate."""
    sizes, size = {smallest, largest}, float(smallest)
    while size < largest:
        sizes.add(round(size))
        size = max(size + 1, size * ratio)
    return torch.tensor(sorted(sizes))


class _Moments(NamedTuple):
    """Of u(a,b) under one or more pools: its mean, the variance of its projection E_b u(a,b), and its own variance."""

    mean: Tensor
    projected: Tensor
    total: Tensor

    def deviation(self, n: int) -> Tensor:
        """The standard deviation of the U-statistic of n draws: 4(n-2)/n(n-1) ζ₁ + 2/n(n-1) ζ₂ (Hoeffding 1948)."""
        return ((4 * (n - 2) * self.projected + 2 * self.total) / (n * (n - 1))).sqrt()


def _moments(u: Tensor, shares: Tensor) -> _Moments:
    """Moments over pairs of different images, for each row of `shares` (the weight of every image in that pool)."""
    pairs = 1 - shares.square().sum(1)
    rows = shares @ u
    mean = torch.linalg.vecdot(rows, shares) / pairs
    projection = rows / (1 - shares)
    projected = torch.linalg.vecdot(shares, (projection - mean[:, None]).square())
    total = torch.linalg.vecdot(shares @ u.square(), shares) / pairs - mean.square()
    return _Moments(mean, projected, total.clamp_min(1e-20))


def centred(k_pool: Tensor, k_reference_pool: Tensor) -> Tensor:
    """u(a,b) = k(a,b) - c(a) - c(b) over a pool, c being the mean kernel with the reference; zero for a = b."""
    mean = k_reference_pool.mean(0)
    return (k_pool - mean[:, None] - mean[None, :]).fill_diagonal_(0)


def statistics(u: Tensor, shares: Tensor) -> Tensor:
    """The U-statistic of every batch (a row of `shares`): the mean of u over its pairs of different images."""
    pairs = (1 - shares.square().sum(1)).clamp_min(1e-6)  # a batch of copies of one image has no pair, and gives zero
    return torch.linalg.vecdot(shares @ u, shares) / pairs


def shares_of(drawn: Tensor, count: int) -> Tensor:
    """How much of each draw (a row of indices below `count`) every index makes up."""
    weight = torch.full(drawn.shape, 1 / drawn.shape[1])
    return torch.zeros(len(drawn), count).scatter_add_(1, drawn, weight)


def _interpolate(size: int, sizes: Tensor, values: Tensor) -> float:
    """Piecewise linear in 1/size; `size` must lie within `sizes`."""
    right = int(torch.searchsorted(sizes, size))
    if sizes[right] == size:
        return float(values[right])
    low, high = float(sizes[right - 1]), float(sizes[right])
    weight = (1 / size - 1 / low) / (1 / high - 1 / low)
    return float(values[right - 1] * (1 - weight) + values[right] * weight)

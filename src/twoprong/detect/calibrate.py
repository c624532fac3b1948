"""Thresholds that keep a promised false-alarm rate on batches nobody has seen, and the law that p-values come from.

The reference is fixed, so the statistic's law is the one *given that reference*; and the calibration pool is finite, so that
law is known only up to the pool's luck. Both are met by one posterior. In the kernel's feature space, φ̃ = φ - μ_P:

    MMD²_u(batch) = mean_{i≠j} ⟨φ̃_i, φ̃_j⟩ + 2 ⟨mean_i φ̃_i, δ⟩ + |δ|² + a known constant,     δ = μ_P - μ_reference

Only δ is unknown. Its plug-in δ̂ = μ_pool - μ_reference has the pool's noise in it: E⟨δ̂,Cδ̂⟩ = ⟨δ,Cδ⟩ + tr C² / N (C is φ's
covariance), so the plug-in variance of the statistic is too large, and a resampled pool adds the same excess again. The
reference too is a sample of P, of M images: before the pool is seen δ ~ (0, τC) with τ = 1/M, and with
δ̂ | δ ~ (δ, C/N) follows δ | δ̂ ~ (w·δ̂, w·C/N), w = τ / (τ + 1/N). Its ⟨δ,Cδ⟩ is unbiased: w²(τ + 1/N) + w/N = τ.
A reference that is clearly no sample of the pool's law (|δ̂|² beyond all that chance gave) gets τ = |δ̂|²/tr C - 1/N.

Draws of δ are resampled pools, batches are drawn from the pool with replacement. Pairs of copies of one image are left out.
The threshold in force is an upper quantile over δ of the batches' quantile, the p-values' law the mixture over δ.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from twoprong.errors import InputError
from twoprong.progress import Progress, silent

BATCHES = 5000  # batches drawn per size: their quantile misses the wanted rate of 5 % by ± 0.3 points (one sigma)
DRAWS = 300  # of δ: what the confidence bound is a quantile of
LEVELS = 999  # equally likely values of the null law that are kept per size: p-values have steps of 1/1000


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
        return float(between(size, self.sizes, self.upper))


def calibrate(
    k_pool: Tensor,
    k_reference_pool: Tensor,
    within_reference: float,
    sizes: Tensor,
    rate: float,
    confidence: float,
    generator: torch.Generator,
    progress: Progress = silent,
) -> tuple[Thresholds, Tensor]:
    """Thresholds for MMD²_u (full cross mean) between a fixed reference and clean batches of the given sizes.

    `k_pool` is the calibration images' Gram matrix, `k_reference_pool` (reference × pool) their kernel with the reference,
    `within_reference` the reference's own off-diagonal mean. Beside the table comes the null law: one row per size of
    `LEVELS` rising values, between which the statistic of a clean batch falls equally often.
    """
    law, count = _law(k_pool, k_reference_pool, within_reference, generator), len(k_pool)
    levels = torch.arange(1, LEVELS + 1, dtype=torch.double) / (LEVELS + 1)
    levels = torch.cat([levels, torch.tensor([1 - rate], dtype=torch.double)])  # one sort for both
    upper, central, null = [], [], []
    for step, size in enumerate(sizes.tolist()):
        batches = shares_of(torch.randint(count, (BATCHES, size), generator=generator), count).to(k_pool)
        values = statistics(law.pairs, batches) + 2 * law.slopes @ batches.T + law.offsets[:, None]
        reached = values.kthvalue(math.ceil((1 - rate) * BATCHES), 1).values
        upper.append(torch.quantile(reached, confidence))
        mixed = values.flatten()[::13].double()  # enough, and every batch and every δ is among them
        quantiles = torch.quantile(mixed, levels.to(mixed))
        central.append(quantiles[-1])
        null.append(quantiles[:-1])
        progress("calibrate", step + 1, len(sizes), f"batches of {size}")
    table = Thresholds(sizes, torch.stack(upper).double().cpu(), torch.stack(central).double().cpu())
    return table, torch.stack(null).float().cpu()


def allowance(rate: float, count: int, confidence: float) -> float:
    """The rate to aim for on `count` images so that with this confidence at most `rate` of others are hit."""
    return max(0.0, rate - NormalDist().inv_cdf(confidence) * math.sqrt(rate * (1 - rate) / count))


def with_single(
    table: Thresholds, null: Tensor, scores: Tensor, rate: float, confidence: float
) -> tuple[Thresholds, Tensor]:
    """The table and the null law with a row for single images before the others: the law of clean images' scores."""
    scores, aim = scores.double().cpu(), allowance(rate, len(scores), confidence)
    levels = torch.arange(1, null.shape[1] + 1, dtype=torch.double) / (null.shape[1] + 1)
    rows = torch.tensor([1]), torch.quantile(scores, 1 - aim)[None], torch.quantile(scores, 1 - rate)[None]
    columns = (torch.cat([row, column]) for row, column in zip(rows, table, strict=True))
    return Thresholds(*columns), torch.cat([torch.quantile(scores, levels)[None].float(), null])


def measured_sizes(smallest: int, largest: int, ratio: float = 1.35) -> Tensor:
    """The batch sizes that are measured: both ends and a geometric grid between, dense enough to interpolate."""
    sizes, size = {smallest, largest}, float(smallest)
    while size < largest:
        sizes.add(round(size))
        size = max(size + 1, size * ratio)
    return torch.tensor(sorted(sizes))


class _Law(NamedTuple):
    """The statistic of clean batches: the mean of `pairs` over a batch's pairs, plus 2·(mean slope), plus the offset.

    `pairs` is ⟨φ̃_a, φ̃_b⟩ over the pool, zero for a = b; per draw of δ, `slopes` is ⟨φ̃_a, δ⟩ and `offsets` |δ|² + constant.
    """

    pairs: Tensor
    slopes: Tensor
    offsets: Tensor


def _law(k_pool: Tensor, k_reference_pool: Tensor, within_reference: float, generator: torch.Generator) -> _Law:
    """The posterior of the module's first lines."""
    count, others = len(k_pool), len(k_reference_pool)
    mean, cross = k_pool.mean(0), k_reference_pool.mean(0)
    gram = k_pool - mean[:, None] - mean[None, :] + mean.mean()
    slope = (mean - cross) - (mean - cross).mean()
    length = within_reference + (k_pool.diagonal().mean() - within_reference) / others  # |μ_reference|²
    squared = mean.mean() - 2 * cross.mean() + length  # |δ̂|²
    noise = shares_of(torch.randint(count, (DRAWS, count), generator=generator), count).to(k_pool) - 1 / count
    moved = noise @ gram
    noises = torch.linalg.vecdot(moved, noise)  # |noise|², of the law that a pool's own mean has around the truth
    trace = gram.diagonal().sum() / (count - 1)
    chance = noises.max() * (1 + count / others)
    prior = torch.where(squared > chance, squared / trace - 1 / count, torch.full_like(squared, 1 / others))
    weight = prior / (prior + 1 / count)
    slopes = weight * slope + weight.sqrt() * moved
    offsets = weight**2 * squared + 2 * weight**1.5 * (noise @ slope) + weight * noises + within_reference - length
    pairs = gram.clone().fill_diagonal_(0)
    pairs = (pairs - pairs.sum() / (count * (count - 1))).fill_diagonal_(0)  # of fresh images the mean is zero
    return _Law(pairs, slopes, offsets)


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


def between(size: int, sizes: Tensor, values: Tensor) -> Tensor:
    """The row of `values` for a size, piecewise linear in 1/size between `sizes`, within which it must lie."""
    right = int(torch.searchsorted(sizes, size))
    if sizes[right] == size:
        return values[right]
    low, high = float(sizes[right - 1]), float(sizes[right])
    weight = (1 / size - 1 / low) / (1 / high - 1 / low)
    return values[right - 1] * (1 - weight) + values[right] * weight

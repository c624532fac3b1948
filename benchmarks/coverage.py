"""How well calibration keeps its word on a law that is known: python benchmarks/coverage.py [POOLS [REFERENCE POOL SIZE]]

Standard normals in 5 dimensions, a Gaussian kernel; 280 images of reference and 280 of calibration (REFERENCE, POOL), drawn
anew every time, for batches of 100 (SIZE). Asked for are at most 5 % false alarms with 90 % confidence. The yardstick is a
bound that knows the true variance and shape of the statistic, and has to estimate its mean only.
"""

import sys

import torch
from torch import Tensor

from twoprong.detect.calibrate import LEVELS, calibrate
from twoprong.detect.mmd import off_diagonal_mean
from twoprong.seeds import generator

DIMENSIONS, RATE, CONFIDENCE = 5, 0.05, 0.9
SIZES = 280, 280, 100  # images of reference and of calibration, and of a batch
FRESH = 4000  # batches that the real rates are counted on
LANDMARKS = 500  # what the mean kernel of a batch with any reference is interpolated from (Nyström); exact to 1e-5
SURE = 1.2816  # the normal quantile of the confidence


def kernel(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-torch.cdist(x, z, compute_mode="use_mm_for_euclid_dist").square() / (2 * DIMENSIONS))


class Fresh:
    """Batches nobody has seen: what their kernel means within and with any reference are."""

    def __init__(self, draw: torch.Generator, count: int, size: int) -> None:
        self.landmarks = 1.3 * torch.randn(LANDMARKS, DIMENSIONS, generator=draw)
        batches = torch.randn(count, size, DIMENSIONS, generator=draw)
        self.within = torch.stack([off_diagonal_mean(kernel(batch, batch)) for batch in batches]).double()
        means = torch.stack([kernel(batch, self.landmarks).mean(0) for batch in batches]).double()
        apart = kernel(self.landmarks.double(), self.landmarks.double()) + 1e-7 * torch.eye(LANDMARKS)
        self.across = torch.linalg.solve(apart, means.T)
        points = batches.flatten(0, 1)[:4000]
        gram = kernel(points, points).fill_diagonal_(0)
        rows = gram.sum(1) / (len(points) - 1)
        centred = gram - rows[:, None] - rows[None, :] + rows.mean()
        self.variance = off_diagonal_mean(centred.square()).item()  # of the kernel, both arguments centred

    def statistics(self, reference: Tensor) -> Tensor:
        cross = kernel(reference.double(), self.landmarks.double()).mean(0) @ self.across
        return self.within - 2 * cross + off_diagonal_mean(kernel(reference, reference))


def study(pools: int, fresh: int = FRESH, sizes: tuple[int, int, int] = SIZES) -> dict[str, Tensor]:
    """The real rate of false alarms of every bound, and of p-values at most 0.05 and 0.5, per reference and pool."""
    draw, (others, count, size) = generator(0, "coverage"), sizes
    unseen = Fresh(draw, fresh, size)
    found: dict[str, list[float]] = {"bound": [], "yardstick": [], "p <= 0.05": [], "p <= 0.5": []}
    for number in range(pools):
        reference, pool = (torch.randn(drawn, DIMENSIONS, generator=draw) for drawn in (others, count))
        k_pool, k_cross = kernel(pool, pool).fill_diagonal_(1), kernel(reference, pool)
        within = off_diagonal_mean(kernel(reference, reference)).item()
        given = torch.tensor([size]), RATE, CONFIDENCE, generator(number, "pool")
        table, null = calibrate(k_pool, k_cross, within, *given)
        values = unseen.statistics(reference)
        p = (1 + LEVELS - torch.searchsorted(null[0].double(), values)) / (1 + LEVELS)
        # The true variance of a batch gives that of the pool's own mean: 4(n-2)/n(n-1) ζ₁ + 2/n(n-1) ζ₂ (Hoeffding 1948).
        n, other = size * (size - 1), count * (count - 1)
        slope = max(0.0, (values.var().item() * n - 2 * unseen.variance) / (4 * (size - 2) + 4))
        deviation = ((4 * (count - 2) * slope + 2 * (unseen.variance + 2 * slope)) / other) ** 0.5
        mean = within + off_diagonal_mean(k_pool) - 2 * k_cross.mean()
        yardstick = mean + torch.quantile(values, 1 - RATE) - values.mean() + SURE * deviation
        for name, flags in (
            ("bound", values >= table.upper),
            ("yardstick", values >= yardstick),
            ("p <= 0.05", p <= 0.05),
            ("p <= 0.5", p <= 0.5),
        ):
            found[name].append(flags.double().mean().item())
    return {name: torch.tensor(rates) for name, rates in found.items()}


def report(found: dict[str, Tensor]) -> list[str]:
    """A line per bound: mean and standard deviation over the pools. Then what it costs not to know the variance."""
    lines = []
    for name, rates in found.items():
        mean, spread, kept = (100 * value.item() for value in (rates.mean(), rates.std(), (rates <= RATE).double().mean()))
        lines.append(
            f"{name}: {mean:.2f} ± {spread:.2f} % of clean batches; at most 5 % in {kept:.1f} % of {len(rates)} pools"
        )
    apart = found["bound"] - found["yardstick"]
    error = (apart.var() / len(apart)).sqrt().item()
    return [*lines, f"bound - yardstick: {100 * apart.mean().item():+.2f} points, standard error {100 * error:.2f}"]


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[1:]] or [400]
    if len(given) not in (1, 4):
        sys.exit(__doc__)
    print("\n".join(report(study(given[0], FRESH, (given[1], given[2], given[3]) if given[1:] else SIZES))))

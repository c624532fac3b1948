"""The permutation null: one matrix product against a loop that re-indexes the Gram matrix for every permutation."""

import torch
from torch import Tensor

from benchmarks.timing import medians
from twoprong.detect.mmd import mmd2
from twoprong.detect.null import memberships, null_of

N, COUNT = 100, 500


def run() -> str:
    """500 permutations at n = m = 100, CPU."""
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(2 * N, 8, generator=draw)
    gram = torch.exp(-torch.cdist(points, points).square() / 16)
    seconds = medians(
        {"loop": lambda: loop(gram, draw), "vectorised": lambda: null_of(gram, N, memberships(N, N, COUNT, draw))}, rounds=9
    )
    ratio = seconds["loop"] / seconds["vectorised"]
    return (
        f"permutation null, loop / vectorised: {ratio:.1f} (target >= 20; {seconds['vectorised'] * 1e3:.1f} ms vectorised)"
    )


def loop(gram: Tensor, draw: torch.Generator) -> Tensor:
    """The same statistic, one permutation at a time."""
    values = []
    for _ in range(COUNT):
        order = torch.randperm(2 * N, generator=draw)
        k = gram[order][:, order]
        values.append(mmd2(k[:N, :N], k[N:, N:], k[:N, N:], paired=False))
    return torch.stack(values)

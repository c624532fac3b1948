"""What the statistic does when both samples come from one distribution: the permutation null, from one Gram matrix."""

import torch
from torch import Tensor


def permutation_null(
    gram: Tensor, m: int, count: int, generator: torch.Generator | None = None, paired: bool | None = None
) -> Tensor:
    """MMD²_u for `count` random relabellings of the m + n pooled images whose Gram matrix is `gram` (the first m are x).

    For the membership matrix S of the smaller sample (count × (m+n)) all its within sums are the rows of (S·K)∘S, the
    cross sums follow from K's row sums, the larger sample's within sums from the total: one matrix product in all. The
    other way round, a small sample's sum would be the difference of two large ones and lose its digits.
    """
    total = gram.shape[0]
    n = total - m
    few, many = sorted((m, n))
    paired = m == n if paired is None else paired
    noise = torch.rand(count, total, generator=generator, device=gram.device)
    order = noise.argsort(1) if paired else None
    chosen = noise.topk(few, 1, sorted=False).indices if order is None else order[:, :m]
    k = gram - torch.diag_embed(gram.diagonal())
    member = torch.zeros(count, total, dtype=k.dtype, device=k.device).scatter_(1, chosen, 1.0)
    within = torch.linalg.vecdot(member @ k, member)
    cross = member @ k.sum(1) - within
    rest = k.sum() - within - 2 * cross
    if order is not None:
        cross = cross - k[order[:, :m], order[:, m:]].sum(1)
    pairs = m * (n - 1) if paired else m * n
    return within / (few * (few - 1)) + rest / (many * (many - 1)) - 2 * cross / pairs


def permutation_p_value(observed: Tensor | float, null: Tensor) -> float:
    """p = (1 + #{null ≥ observed}) / (1 + B): never zero, and at most α with probability at most α under the null."""
    return (1 + int((null >= observed).sum())) / (1 + len(null))

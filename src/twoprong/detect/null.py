"""What the statistic does when both samples come from one distribution: the permutation null, from one Gram matrix."""

import torch
from torch import Tensor


def permutation_null(
    gram: Tensor, m: int, count: int, generator: torch.Generator | None = None, paired: bool | None = None
) -> Tensor:
    """MMD²_u for `count` random relabellings of the m + n pooled images whose Gram matrix is `gram` (the first m are x)."""
    total = gram.shape[0]
    paired = 2 * m == total if paired is None else paired
    noise = torch.rand(count, total, generator=generator, device=gram.device)
    if not paired:
        return null_of(gram, m, _members(noise, m).to(gram.dtype))
    order = noise.argsort(1)
    member = torch.zeros_like(noise).scatter_(1, order[:, :m], 1.0).to(gram.dtype)
    within, cross = _sums(gram, member)
    diagonal = gram[order[:, :m], order[:, m:]].sum(1)
    return _mmd2(gram, m, within, cross, (cross - diagonal) / (m * (m - 1)))


def memberships(m: int, n: int, count: int, generator: torch.Generator) -> Tensor:
    """Who belongs to the smaller sample in each of `count` random relabellings of m + n images: (count, m + n), 0 or 1."""
    return _members(torch.rand(count, m + n, generator=generator, device=generator.device), m)


def null_of(gram: Tensor, m: int, member: Tensor) -> Tensor:
    """MMD²_u (full cross mean) for given memberships of the smaller sample.

    For the membership matrix S (count × (m+n)) all its within sums are the rows of (S·K)∘S, the cross sums follow from K's
    row sums, the larger sample's within sums from the total: one matrix product in all. The other way round, a small
    sample's sum would be the difference of two large ones and lose its digits.
    """
    within, cross = _sums(gram, member)
    return _mmd2(gram, m, within, cross, cross / (m * (gram.shape[0] - m)))


def _mmd2(gram: Tensor, m: int, within: Tensor, cross: Tensor, cross_mean: Tensor) -> Tensor:
    few, many = min(m, gram.shape[0] - m), max(m, gram.shape[0] - m)  # a compiler cannot follow sorted()
    rest = gram.sum() - gram.diagonal().sum() - within - 2 * cross
    return within / (few * (few - 1)) + rest / (many * (many - 1)) - 2 * cross_mean


def _sums(gram: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """For every membership the sum of K within the smaller sample, without the diagonal, and across to the other."""
    k = gram - torch.diag_embed(gram.diagonal())
    within = torch.linalg.vecdot(member @ k, member)
    return within, member @ k.sum(1) - within


def _members(noise: Tensor, m: int) -> Tensor:
    chosen = noise.topk(min(m, noise.shape[1] - m), 1, sorted=False).indices
    return torch.zeros_like(noise).scatter_(1, chosen, 1.0)


def permutation_p_value(observed: Tensor | float, null: Tensor) -> float:
    """p = (1 + #{null ≥ observed}) / (1 + B): never zero, and at most α with probability at most α under the null."""
    return (1 + int((null >= observed).sum())) / (1 + len(null))

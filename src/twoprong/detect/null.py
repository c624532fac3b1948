"""What the statistic does when both samples come from one distribution: the permutation null, from one Gram matrix."""

import torch
from torch import Tensor


def memberships(m: int, n: int, count: int, generator: torch.Generator) -> Tensor:
    """Who belongs to the smaller sample in each of `count` random relabellings of m + n images: (count, m + n), 0 or 1."""
    noise = torch.rand(count, m + n, generator=generator, device=generator.device)
    chosen = noise.topk(min(m, n), 1, sorted=False).indices
    return torch.zeros_like(noise).scatter_(1, chosen, 1.0)


def null_of(gram: Tensor, m: int, member: Tensor) -> Tensor:
    """MMD²_u (full cross mean) for given memberships of the smaller sample.

    For the membership matrix S (count × (m+n)) all its within sums are the rows of (S·K)∘S, the cross sums follow from K's
    row sums, the larger sample's within sums from the total: one matrix product in all. The other way round, a small
    sample's sum would be the difference of two large ones and lose its digits.
    """
    within, cross = _sums(gram, member)
    total = gram.shape[0]
    few, many = min(m, total - m), max(m, total - m)  # a compiler cannot follow sorted()
    rest = gram.sum() - gram.diagonal().sum() - within - 2 * cross
    return within / (few * (few - 1)) + rest / (many * (many - 1)) - 2 * cross / (few * many)


def reached(null: Tensor, statistic: Tensor) -> Tensor:
    """How many relabelled samples have a statistic as large as the observed one; ties speak against an alarm."""
    return (null >= statistic).sum()


def p_value(times: float, count: int) -> float:
    """p = (1 + #{null ≥ observed}) / (1 + B): never zero, and at most α with probability at most α under the null."""
    return (1 + times) / (1 + count)


def _sums(gram: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """For every membership the sum of K within the smaller sample, without the diagonal, and across to the other."""
    k = gram - torch.diag_embed(gram.diagonal())
    within = torch.linalg.vecdot(member @ k, member)
    return within, member @ k.sum(1) - within

import pytest
import torch
from scipy.stats import kstest

from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.mmd import mmd2
from twoprong.detect.null import permutation_null, permutation_p_value
from twoprong.seeds import generator


def loop_null(gram, x, y, paired):
    """MMD²_u of the relabelled samples, in float64, from the permuted Gram matrix's entries one by one."""
    k = gram.tolist()
    within_x = [k[a][b] for a in x for b in x if a != b]
    within_y = [k[a][b] for a in y for b in y if a != b]
    cross = [k[a][b] for i, a in enumerate(x) for j, b in enumerate(y) if not paired or i != j]
    return sum(within_x) / len(within_x) + sum(within_y) / len(within_y) - 2 * sum(cross) / len(cross)


def pooled(draw_sample, total, dtype):
    pool = draw_sample(total, "pool", dtype=dtype)
    return DeepKernel(1.0, 1.5, 0.2).to(dtype).requires_grad_(False)(pool, pool)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [2, 11])
def test_paired_null_is_the_statistic_of_the_permuted_gram_matrix(draw_sample, n, dtype):
    gram = pooled(draw_sample, 2 * n, dtype)
    null = permutation_null(gram, n, 30, torch.Generator().manual_seed(3))
    orders = torch.rand(30, 2 * n, generator=torch.Generator().manual_seed(3)).argsort(1)
    expected = [loop_null(gram, order[:n], order[n:], paired=True) for order in orders.tolist()]
    assert null.tolist() == pytest.approx(expected, abs=1e-6)
    by_mmd2 = []
    for order in orders:
        k = gram[order][:, order]
        by_mmd2.append(mmd2(k[:n, :n], k[n:, n:], k[:n, n:]).item())
    assert null.tolist() == pytest.approx(by_mmd2, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("m", "n"), [(60, 2), (25, 9), (9, 25), (8, 8)])
def test_unpaired_null_is_the_statistic_of_the_permuted_gram_matrix(draw_sample, m, n, dtype):
    """The labels are known but for which group is which; the statistic does not mind, as sizes tell them apart."""
    gram = pooled(draw_sample, m + n, dtype)
    null = permutation_null(gram, m, 30, torch.Generator().manual_seed(4), paired=False)
    orders = torch.rand(30, m + n, generator=torch.Generator().manual_seed(4)).argsort(1, descending=True).tolist()
    few = min(m, n)
    expected = [loop_null(gram, order[:few], order[few:], paired=False) for order in orders]
    assert null.tolist() == pytest.approx(expected, abs=1e-6)


def test_small_batches_beside_a_large_reference_keep_their_digits(draw_sample):
    """In float32: the sum over two images must not be what is left of a sum over half a million pairs."""
    gram = pooled(draw_sample, 702, torch.float32)
    null = permutation_null(gram, 700, 50, torch.Generator().manual_seed(5), paired=False)
    exact = permutation_null(gram.double(), 700, 50, torch.Generator().manual_seed(5), paired=False)
    assert (null - exact).abs().max() < 1e-6


def test_the_null_of_a_pool_without_structure_is_zero():
    gram = torch.ones(30, 30)
    assert permutation_null(gram, 20, 25).tolist() == pytest.approx([0] * 25, abs=1e-6)


def test_p_value_counts_itself():
    """(1 + #{null ≥ observed}) / (1 + B): in (0, 1], ties count against the alarm."""
    null = torch.tensor([0.1, 0.2, 0.2, 0.4])
    for observed, above in ((0.0, 4), (0.1, 4), (0.2, 3), (0.3, 1), (0.4, 1), (0.5, 0)):
        assert permutation_p_value(torch.tensor(observed), null) == (1 + above) / 5


def p_values(kernel, m, n, repetitions, shift):
    """Every p-value from a reference and a batch of its own, spread evenly over its step of 1/(B+1)."""
    count, source = 199, generator(0, "p-values", m, n, shift)
    found = []
    for _ in range(repetitions):
        points = torch.randn(m + n, 3, generator=source)
        points[m:] += shift
        pool = Sample(points, points)
        gram = kernel(pool, pool)
        paired = None if m == n else False
        observed = mmd2(gram[:m, :m], gram[m:, m:], gram[:m, m:], paired=paired)
        found.append(permutation_p_value(observed, permutation_null(gram, m, count, source, paired)))
    return torch.tensor(found, dtype=torch.float64) - torch.rand(repetitions, generator=source).double() / (count + 1)


@pytest.mark.parametrize(("m", "n"), [(20, 20), (40, 10)])
def test_p_values_are_uniform_under_the_null_and_only_then(m, n):
    kernel = DeepKernel(1.5, 1.5).requires_grad_(False)
    under_null = p_values(kernel, m, n, 500, shift=0.0)
    assert kstest(under_null.numpy(), "uniform").pvalue > 0.01  # the level at which a right implementation would fail
    shifted = p_values(kernel, m, n, 100, shift=0.6)
    assert kstest(shifted.numpy(), "uniform").pvalue < 1e-6
    assert shifted.mean() < 0.25

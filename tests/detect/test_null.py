import pytest
import torch
from scipy.stats import kstest

from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.mmd import mmd2
from twoprong.detect.null import memberships, null_of, p_value, reached
from twoprong.seeds import generator


def loop_null(gram, x, y):
    """MMD²_u of the relabelled samples, in float64, from the permuted Gram matrix's entries one by one."""
    k = gram.tolist()
    within_x = [k[a][b] for a in x for b in x if a != b]
    within_y = [k[a][b] for a in y for b in y if a != b]
    cross = [k[a][b] for a in x for b in y]
    return sum(within_x) / len(within_x) + sum(within_y) / len(within_y) - 2 * sum(cross) / len(cross)


def pooled(draw_sample, total, dtype):
    pool = draw_sample(total, "pool", dtype=dtype)
    return DeepKernel(1.0, 1.5, 0.2).to(dtype).requires_grad_(False)(pool, pool)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("m", "n"), [(60, 2), (25, 9), (9, 25), (8, 8)])
def test_the_null_is_the_statistic_of_the_permuted_gram_matrix(draw_sample, m, n, dtype):
    """The labels are known but for which group is which; the statistic does not mind, as sizes tell them apart."""
    gram = pooled(draw_sample, m + n, dtype)
    null = null_of(gram, m, memberships(m, n, 30, torch.Generator().manual_seed(4)).to(dtype))
    orders = torch.rand(30, m + n, generator=torch.Generator().manual_seed(4)).argsort(1, descending=True).tolist()
    few = min(m, n)
    expected = [loop_null(gram, order[:few], order[few:]) for order in orders]
    assert null.tolist() == pytest.approx(expected, abs=1e-6)


def test_small_batches_beside_a_large_reference_keep_their_digits(draw_sample):
    """In float32: the sum over two images must not be what is left of a sum over half a million pairs."""
    gram = pooled(draw_sample, 702, torch.float32)
    members = memberships(700, 2, 50, torch.Generator().manual_seed(5))
    null, exact = null_of(gram, 700, members), null_of(gram.double(), 700, members.double())
    assert (null - exact).abs().max() < 1e-6


def test_the_null_of_a_pool_without_structure_is_zero():
    gram = torch.ones(30, 30)
    members = memberships(20, 10, 25, generator(0, "flat"))
    assert null_of(gram, 20, members).tolist() == pytest.approx([0] * 25, abs=1e-6)


def test_p_value_counts_itself():
    """(1 + #{null ≥ observed}) / (1 + B): in (0, 1], ties count against the alarm."""
    null = torch.tensor([0.1, 0.2, 0.2, 0.4])
    for observed, above in ((0.0, 4), (0.1, 4), (0.2, 3), (0.3, 1), (0.4, 1), (0.5, 0)):
        assert p_value(reached(null, torch.tensor(observed)).item(), len(null)) == (1 + above) / 5


def p_values(kernel, m, n, repetitions, shift):
    """Every p-value from a reference and a batch of its own, spread evenly over its step of 1/(B+1)."""
    count, source = 199, generator(0, "p-values", m, n, shift)
    found = []
    for _ in range(repetitions):
        points = torch.randn(m + n, 3, generator=source)
        points[m:] += shift
        pool = Sample(points, points)
        gram = kernel(pool, pool)
        observed = mmd2(gram[:m, :m], gram[m:, m:], gram[:m, m:], paired=False)
        null = null_of(gram, m, memberships(m, n, count, source))
        found.append(p_value(reached(null, observed).item(), count))
    return torch.tensor(found, dtype=torch.float64) - torch.rand(repetitions, generator=source).double() / (count + 1)


@pytest.mark.parametrize(("m", "n"), [(20, 20), (40, 10)])
def test_p_values_are_uniform_under_the_null_and_only_then(m, n):
    kernel = DeepKernel(1.5, 1.5).requires_grad_(False)
    under_null = p_values(kernel, m, n, 500, shift=0.0)
    assert kstest(under_null.numpy(), "uniform").pvalue > 0.01  # the level at which a right implementation would fail
    shifted = p_values(kernel, m, n, 100, shift=0.6)
    assert kstest(shifted.numpy(), "uniform").pvalue < 1e-6
    assert shifted.mean() < 0.25

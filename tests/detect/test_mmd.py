import math

import pytest
import torch
from torch.autograd import gradcheck

from twoprong.detect.kernel import DeepKernel
from twoprong.detect.mmd import h_matrix, mmd2, mmd2_variance, power_objective
from twoprong.errors import InputError

DTYPES = [torch.float64, torch.float32]


def grams(draw_sample, m, n, dtype):
    """Three Gram matrices of two samples far enough apart that the statistic is not near zero."""
    x, y = draw_sample(m, "x", dtype=dtype), draw_sample(n, "y", shift=0.7, dtype=dtype)
    kernel = DeepKernel(1.1, 1.6, 0.2).to(dtype).requires_grad_(False)
    return kernel(x, x), kernel(y, y), kernel(x, y)


def loop_h(k_xx, k_yy, k_xy):
    n = len(k_xx)
    xx, yy, xy = k_xx.tolist(), k_yy.tolist(), k_xy.tolist()
    return [[xx[i][j] + yy[i][j] - xy[i][j] - xy[j][i] for j in range(n)] for i in range(n)]


def loop_u_paired(k_xx, k_yy, k_xy):
    h, n = loop_h(k_xx, k_yy, k_xy), len(k_xx)
    return sum(h[i][j] for i in range(n) for j in range(n) if i != j) / (n * (n - 1))


def loop_mean(k, diagonal):
    values = k.tolist()
    kept = [value for i, row in enumerate(values) for j, value in enumerate(row) if diagonal or i != j]
    return sum(kept) / len(kept)


def loop_u_unpaired(k_xx, k_yy, k_xy):
    return loop_mean(k_xx, False) + loop_mean(k_yy, False) - 2 * loop_mean(k_xy, True)


def loop_v(k_xx, k_yy, k_xy):
    return loop_mean(k_xx, True) + loop_mean(k_yy, True) - 2 * loop_mean(k_xy, True)


def loop_variance(h, regularisation):
    """The paper's eq. 5 as printed."""
    n = len(h)
    rows = [sum(row) for row in h]
    return 4 / n**3 * sum(row**2 for row in rows) - 4 / n**4 * sum(rows) ** 2 + regularisation


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 3, 23])
def test_u_on_equal_sizes_is_the_papers_sum_over_h(draw_sample, n, dtype):
    given = grams(draw_sample, n, n, dtype)
    assert mmd2(*given).item() == pytest.approx(loop_u_paired(*given), abs=1e-6)
    assert mmd2(*given, paired=True).item() == pytest.approx(loop_u_paired(*given), abs=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(2, 5), (31, 12), (12, 31), (9, 9)])
def test_unpaired_u_takes_the_whole_cross_mean(draw_sample, m, n, dtype):
    given = grams(draw_sample, m, n, dtype)
    assert mmd2(*given, paired=False).item() == pytest.approx(loop_u_unpaired(*given), abs=1e-6)
    if m != n:
        assert torch.equal(mmd2(*given), mmd2(*given, paired=False))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 4), (17, 17), (20, 9)])
def test_v_is_the_plain_mean_difference(draw_sample, m, n, dtype):
    given = grams(draw_sample, m, n, dtype)
    assert mmd2(*given, estimator="v").item() == pytest.approx(loop_v(*given), abs=1e-6)


def test_v_is_never_negative_where_u_is(draw_sample):
    kernel = DeepKernel(1.0, 1.0).requires_grad_(False)
    u, v = [], []
    for number in range(40):
        x, y = draw_sample(6, "x", number, dtype=torch.float64), draw_sample(6, "y", number, dtype=torch.float64)
        given = kernel(x, x), kernel(y, y), kernel(x, y)
        u.append(mmd2(*given).item())
        v.append(mmd2(*given, estimator="v").item())
    assert min(v) >= 0
    assert min(u) < 0 < max(u)  # unbiased: around zero when both samples have one law
    x = draw_sample(6, "x", dtype=torch.float64)
    assert mmd2(*[kernel(x, x)] * 3, estimator="v").item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 19])
@pytest.mark.parametrize("regularisation", [1e-8, 0.3])
def test_variance_is_the_papers_form(draw_sample, n, dtype, regularisation):
    given = grams(draw_sample, n, n, dtype)
    h = h_matrix(*given)
    expected = loop_h(*given)
    assert torch.allclose(h.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-6)
    assert mmd2_variance(h, regularisation).item() == pytest.approx(loop_variance(expected, regularisation), abs=1e-6)


def test_variance_never_falls_below_the_regularisation():
    """Rows that are all alike: the printed form subtracts two equal large numbers, and may end up below zero."""
    h = torch.full((50, 50), 1.1)
    assert mmd2_variance(h, 1e-8).item() == pytest.approx(1e-8, rel=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regularisation", [1e-8, 1e-2])
def test_power_objective_is_statistic_over_deviation(draw_sample, dtype, regularisation):
    given = grams(draw_sample, 21, 21, dtype)
    expected = loop_u_paired(*given) / math.sqrt(loop_variance(loop_h(*given), regularisation))
    assert power_objective(*given, regularisation).item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_gradients_in_the_gram_matrices(draw_sample):
    given = [k.clone().requires_grad_() for k in grams(draw_sample, 5, 5, torch.float64)]
    assert gradcheck(mmd2, given)
    assert gradcheck(lambda *k: mmd2(*k, paired=False), given)
    assert gradcheck(lambda *k: mmd2(*k, estimator="v"), given)
    assert gradcheck(lambda *k: mmd2_variance(h_matrix(*k)), given)
    assert gradcheck(power_objective, given)


def test_gradients_in_the_kernel_parameters(draw_sample):
    x = draw_sample(7, "x", dtype=torch.float64)
    y = draw_sample(7, "y", shift=0.7, dtype=torch.float64)
    names = list(dict(DeepKernel().named_parameters()))
    start = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.2, 0.4, -1.3)]

    def with_parameters(measure):
        return lambda *values: measure(Rebound(DeepKernel(), dict(zip(names, values, strict=True))))

    assert gradcheck(with_parameters(lambda kernel: power_objective(kernel(x, x), kernel(y, y), kernel(x, y))), start)
    assert gradcheck(with_parameters(lambda kernel: mmd2(kernel(x, x), kernel(y, y), kernel(x, y))), start)
    assert gradcheck(with_parameters(lambda kernel: mmd2(kernel(x, x), kernel(y, y), kernel(x, y), paired=False)), start)


class Rebound:
    """A module called with other parameters."""

    def __init__(self, module, values):
        self.module, self.values = module, values

    def __call__(self, *arguments):
        return torch.func.functional_call(self.module, self.values, arguments)


@pytest.mark.parametrize(
    "shapes",
    [((3, 3), (4, 4), (4, 3)), ((3, 3), (3, 3), (3, 4)), ((3, 4), (4, 4), (3, 4)), ((1, 1), (4, 4), (3, 4))],
)
@pytest.mark.parametrize("estimator", ["u", "v"])
def test_gram_matrices_that_do_not_fit_are_refused(shapes, estimator):
    m, n = shapes[2]
    with pytest.raises(InputError, match=rf"k_xx \({m}, {m}\) and k_yy \({n}, {n}\)"):
        mmd2(*[torch.rand(shape) for shape in shapes], estimator=estimator)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 5), (5, 1)])
def test_u_refuses_fewer_than_two(m, n):
    with pytest.raises(InputError, match=f"2 or more of each, got {m} and {n}"):
        mmd2(torch.rand(m, m), torch.rand(n, n), torch.rand(m, n))


def test_pairing_needs_one_size():
    with pytest.raises(InputError, match="one size with paired=True, got 3 and 4"):
        mmd2(torch.rand(3, 3), torch.rand(4, 4), torch.rand(3, 4), paired=True)

"""Thresholds keep their promise: false alarms on unseen batches, counted, against binomial bands."""

from itertools import pairwise

import pytest
import torch
from scipy.stats import binom

from twoprong.config import DetectorConfig
from twoprong.detect.calibrate import LEVELS, Thresholds, centred, measured_sizes, shares_of, statistics
from twoprong.detect.calibrate import calibrate as calibrated
from twoprong.detect.detector import Detector
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.seeds import generator

SIZES = (10, 25, 50, 100)
REPETITIONS = 400


def calibrate(*given):
    return calibrated(*given)[0]


def clean(n, *name):
    source = generator(0, "clean", *name)
    return Sample(torch.rand(n, 1, 2, 2, generator=source), torch.randn(n, 4, generator=source))


def new_detector():
    reference = clean(500, "reference")
    return Detector(DeepKernel.from_median(reference).requires_grad_(False), reference)


def false_alarms(detector, threshold, n, *name):
    """How many of 400 fresh batches of n reach the threshold."""
    fresh = clean(n * REPETITIONS, "fresh", n, *name)
    batches = (fresh.rows(slice(start, start + n)) for start in range(0, n * REPETITIONS, n))
    return sum(detector.statistic(batch).item() >= threshold for batch in batches)


def assert_in_band(alarms, rate):
    low, high = binom.ppf([0.005, 0.995], REPETITIONS, rate)
    assert low <= alarms <= high, f"{alarms} false alarms in {REPETITIONS}, expected {low} to {high}"


@pytest.fixture(scope="module")
def detector():
    """Calibrated as users do it, at the rate of 5 %, with the threshold that is as often too high as too low."""
    config = DetectorConfig(min_batch_size=10, max_batch_size=100, confidence=0.5)
    return new_detector().calibrate(clean(1000, "pool"), config, seed=0)


@pytest.mark.parametrize("n", [*SIZES, 17, 37])
def test_false_alarms_at_even_confidence(detector, n):
    """17, 37 and 50 are not measured but interpolated."""
    assert_in_band(false_alarms(detector, detector.thresholds.at(n), n), 0.05)


def test_which_sizes_are_interpolated(detector):
    assert {10, 100} <= set(detector.sizes.tolist())
    assert not {17, 37, 50} & set(detector.sizes.tolist())


def test_the_threshold_of_one_size_does_not_hold_for_another(detector):
    """What calibrating per size is for: the threshold of 100 would make far too many alarms at 10, and the reverse none."""
    high, low = detector.thresholds.at(10), detector.thresholds.at(100)
    assert false_alarms(detector, low, 10) > binom.ppf(0.9999, REPETITIONS, 0.05)
    assert false_alarms(detector, high, 100) < binom.ppf(0.0001, REPETITIONS, 0.05)


@pytest.fixture(scope="module")
def gram():
    """What `calibrate` needs of a pool of 2000: its Gram matrix, that with the reference, the reference's own mean."""
    detector, pool = new_detector(), clean(2000, "large pool")
    k = detector.k_reference
    within = (k.sum() - k.trace()) / (len(k) * (len(k) - 1))
    return detector, detector.kernel(pool, pool), detector.kernel(detector.reference, pool), within.item()


def test_false_alarms_at_the_default_confidence_with_a_large_pool(gram):
    detector, *matrices = gram
    confidence = DetectorConfig().confidence
    table = calibrate(*matrices, torch.tensor(SIZES), 0.05, confidence, generator(0, "large"))
    for n, upper, central in zip(SIZES, table.upper, table.central, strict=True):
        assert upper > central
        assert_in_band(false_alarms(detector, upper.item(), n, "large"), 0.05)


@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_other_rates(gram, rate):
    detector, k_pool, k_cross, within = gram
    part = slice(0, 1500)
    table = calibrate(k_pool[part, part], k_cross[:, part], within, torch.tensor([20, 60]), rate, 0.5, generator(0, "rate"))
    for n in (20, 60):
        assert_in_band(false_alarms(detector, table.at(n), n, rate), rate)


def gaussian(x, z):
    return torch.exp(-torch.cdist(x, z).square() / 4)


def off_diagonal_mean(k):
    n = k.shape[-1]
    return (k.sum((-1, -2)) - k.diagonal(dim1=-2, dim2=-1).sum(-1)) / (n * (n - 1))


def test_small_pools_keep_the_rate_with_the_confidence_asked_for():
    """32 references of 100, each with a pool of 300 for batches of 100, and 400 fresh batches to count alarms on.

    The share of draws whose real rate is at most 5 % is to be 90 % for the threshold in force, and is to be clearly less
    for the central one and for the quantile over batches drawn without replacement, which vary too little.
    """
    draws, rate, confidence, n = 32, 0.05, 0.9, 100
    kept = {"upper": 0, "central": 0, "without replacement": 0}
    for draw in range(draws):
        source = generator(draw, "small pools")
        reference, pool = torch.randn(100, 3, generator=source), torch.randn(300, 3, generator=source)
        batches = torch.randn(400, n, 3, generator=source)
        within = off_diagonal_mean(gaussian(reference, reference)).item()
        k_pool, k_cross = gaussian(pool, pool), gaussian(reference, pool)
        table = calibrate(k_pool, k_cross, within, torch.tensor([n]), rate, confidence, source)

        cross = gaussian(batches.flatten(0, 1), reference).mean(1).view(400, n).mean(1)
        statistics = within + off_diagonal_mean(gaussian(batches, batches)) - 2 * cross
        chosen = torch.rand(1000, 300, generator=source).argsort(1)[:, :n]
        member = torch.zeros(1000, 300).scatter_(1, chosen, 1.0)
        sums = ((member @ (k_pool - torch.eye(300))) * member).sum(1)
        drawn = within + sums / (n * (n - 1)) - 2 * (member @ k_cross.mean(0)) / n

        thresholds = {
            "upper": table.upper.item(),
            "central": table.central.item(),
            "without replacement": torch.quantile(drawn, 1 - rate).item(),
        }
        assert thresholds["upper"] >= thresholds["central"]
        for name, threshold in thresholds.items():
            kept[name] += (statistics >= threshold).double().mean().item() <= rate
    assert kept["upper"] >= binom.ppf(0.005, draws, confidence)
    assert kept["central"] < binom.ppf(0.005, draws, confidence)
    assert kept["without replacement"] < kept["central"] < kept["upper"]


def test_at_even_confidence_both_columns_agree_closely(gram):
    """The median over resampled pools is the estimate itself, but for noise: far nearer than the bound of 90 %."""
    _, k_pool, k_cross, within = gram
    part = slice(0, 500)
    given = k_pool[part, part], k_cross[:, part], within, torch.tensor([30]), 0.05
    even = calibrate(*given, 0.5, generator(0, "columns"))
    sure = calibrate(*given, 0.9, generator(0, "columns"))
    assert torch.equal(even.central, sure.central)
    assert abs(even.upper - even.central) < 0.5 * (sure.upper - sure.central)


def test_higher_confidence_and_lower_rates_raise_the_threshold(gram):
    _, k_pool, k_cross, within = gram
    part = slice(0, 300)

    def upper(rate, confidence):
        given = k_pool[part, part], k_cross[:, part], within, torch.tensor([5, 30])
        return calibrate(*given, rate, confidence, generator(0, "order")).upper

    assert (upper(0.05, 0.99) > upper(0.05, 0.9)).all()
    assert (upper(0.05, 0.9) > upper(0.05, 0.5)).all()
    assert (upper(0.01, 0.9) > upper(0.05, 0.9)).all()


def test_copies_of_one_image_do_not_count_as_a_pair():
    """Images all unlike each other (kernel 0 between any two): no batch looks like an attack, whatever stands twice."""
    u = centred(torch.eye(12), torch.zeros(5, 12))
    assert statistics(u, shares_of(torch.tensor([[3, 3, 3, 5], [1, 1, 1, 1]]), 12)).tolist() == [0, 0]


def test_the_table_is_a_function_of_the_generator():
    k = torch.rand(40, 40, generator=torch.Generator().manual_seed(0))
    given = k + k.T, k[:7], 0.1, torch.tensor([4, 9]), 0.05, 0.9
    first, again, other = (calibrate(*given, generator(seed, "table")) for seed in (1, 1, 2))
    assert torch.equal(first.upper, again.upper)
    assert torch.equal(first.central, again.central)
    assert not torch.equal(first.upper, other.upper)


def test_inputs_are_left_as_they_were():
    k = torch.rand(40, 40, generator=torch.Generator().manual_seed(0))
    k_pool, k_cross = k.clone(), k[:7].clone()
    calibrate(k_pool, k_cross, 0.1, torch.tensor([4]), 0.05, 0.9, generator(1))
    assert torch.equal(k_pool, k)
    assert torch.equal(k_cross, k[:7])


def test_progress_is_told_of_every_size():
    told = []
    k = torch.eye(12)
    calibrate(k, k, 0.0, torch.tensor([2, 5, 9]), 0.05, 0.9, generator(0), lambda *args: told.append(args[:3]))
    assert told == [("calibrate", step, 3) for step in (1, 2, 3)]


@pytest.mark.parametrize(("smallest", "largest"), [(2, 200), (10, 100), (7, 7), (2, 3), (64, 1000)])
def test_measured_sizes_span_the_range_densely(smallest, largest):
    sizes = measured_sizes(smallest, largest).tolist()
    assert sizes[0] == smallest
    assert sizes[-1] == largest
    assert sizes == sorted(set(sizes))
    for low, high in pairwise(sizes):
        assert high == low + 1 or high / low < 1.5


def test_between_measured_sizes_thresholds_are_linear_in_one_over_size():
    sizes = torch.tensor([4, 10, 40])
    table = Thresholds(sizes, 0.7 + 3 / sizes.double(), torch.zeros(3).double())
    for size in range(4, 41):
        assert table.at(size) == pytest.approx(0.7 + 3 / size, rel=1e-12)
    bent = Thresholds(sizes, torch.tensor([5.0, 1.0, 2.0]).double(), torch.zeros(3).double())
    assert [bent.at(size) for size in (4, 10, 40)] == [5.0, 1.0, 2.0]
    assert 1 < bent.at(20) < 2


def linear(x, z):
    return x @ z.T


def test_the_law_of_a_kernel_that_sees_one_number():
    """k(a, b) = a·b on standard normals: given a reference of mean m the statistic is (ȳ - m)² but for s²/n and a constant.

    So the law is known, and the pool is large enough to tell it well.
    """
    source, n, reference = generator(0, "linear"), 50, torch.tensor([[1.1], [-0.9]]).repeat(100, 1)
    pool, fresh = torch.randn(2000, 1, generator=source), torch.randn(20_000, n, generator=source)
    pool = (pool - pool.mean()) / pool.std()  # a pool without luck
    within = off_diagonal_mean(linear(reference, reference)).item()
    table, null = calibrated(linear(pool, pool), linear(reference, pool), within, torch.tensor([n]), 0.05, 0.5, source)
    mean = fresh.mean(1)
    values = (n * mean.square() - fresh.square().mean(1)) / (n - 1) - 2 * 0.1 * mean + within
    assert (values >= table.central).double().mean().item() == pytest.approx(0.05, abs=0.015)
    shares = torch.searchsorted(null[0].double(), values.double()) / LEVELS
    for wanted in (0.1, 0.5, 0.9):
        assert (shares <= wanted).double().mean().item() == pytest.approx(wanted, abs=0.04)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_a_reference_of_another_law_keeps_the_rate(shift):
    """Thresholds hold for the reference there is: one from another camera, say, is met by the pool's own evidence."""
    source, n = generator(0, "shifted"), 40
    reference, pool = torch.randn(300, 3, generator=source) + shift, torch.randn(1500, 3, generator=source)
    batches = torch.randn(1000, n, 3, generator=source)
    within = off_diagonal_mean(gaussian(reference, reference)).item()
    table = calibrate(
        gaussian(pool, pool), gaussian(reference, pool), within, torch.tensor([n]), 0.05, 0.9, generator(1, "shifted")
    )
    cross = gaussian(batches.flatten(0, 1), reference).mean(1).view(1000, n).mean(1)
    alarms = int((within + off_diagonal_mean(gaussian(batches, batches)) - 2 * cross >= table.upper).sum())
    assert binom.ppf(0.0005, 1000, 0.02) <= alarms <= binom.ppf(0.9995, 1000, 0.05)

import pytest
import torch
from scipy.stats import fisher_exact

from twoprong.config import KernelConfig
from twoprong.detect.fit import fit_kernel, found_aside
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.mmd import mmd2, power_objective
from twoprong.detect.null import memberships, null_of, p_value, reached
from twoprong.errors import InputError
from twoprong.seeds import generator

CONFIG = KernelConfig(projections=(0,), epochs=30, lr=0.05, batch_size=100)


def power(kernel, x, y):
    return power_objective(kernel(x, x), kernel(y, y), kernel(x, y))


def blobs(n, spread, source):
    """Nine clusters 5 apart: the median distance is the one between clusters, and all that differs is `spread` within."""
    centre = torch.randint(3, (n, 2), generator=source) * 5.0
    features = centre + spread * torch.randn(n, 2, generator=source)
    return Sample(torch.rand(n, 1, 2, 2, generator=source), features)


def clean(n, *name):
    return blobs(n, 1.0, generator(0, "clean", *name))


def adversarial(n, *name):
    return blobs(n, 3.0, generator(0, "adversarial", *name))


@pytest.fixture(scope="module")
def fitted():
    return fit_kernel(clean(500, "fit"), adversarial(500, "fit"), CONFIG, seed=0)


@pytest.fixture(scope="module")
def start():
    return DeepKernel.from_median(clean(500, "fit"), CONFIG.beta0).requires_grad_(False)


def rejections(kernel, n, repetitions):
    """How often the permutation test at 5 % finds unseen adversarial batches of n."""
    found = 0
    for number in range(repetitions):
        x, y = clean(n, "test", number), adversarial(n, "test", number)
        pool = Sample(torch.cat([x.pixels, y.pixels]), torch.cat([x.features, y.features]))
        gram = kernel(pool, pool)
        observed = mmd2(gram[:n, :n], gram[n:, n:], gram[:n, n:], paired=False)
        null = null_of(gram, n, memberships(n, n, 99, generator(number, "null")))
        found += p_value(reached(null, observed).item(), 99) <= 0.05
    return found


def test_held_out_power_objective_rises(fitted, start):
    """On ten held-out pairs of samples, each."""
    for number in range(10):
        x, y = clean(200, "held out", number), adversarial(200, "held out", number)
        assert power(fitted, x, y) > power(start, x, y)


def test_held_out_test_power_at_50_rises(fitted, start):
    before, after = rejections(start, 50, 100), rejections(fitted, 50, 100)
    table = [[after, 100 - after], [before, 100 - before]]
    assert fisher_exact(table, alternative="greater").pvalue < 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_an_ascent_that_leads_nowhere_is_not_followed(seed):
    """Nothing to find, and a rate at which Adam leaps about: on the fifth kept aside it is no worse than the start."""
    x, y = clean(100, "same", seed), clean(100, "other", seed)
    kernel = fit_kernel(x, y, KernelConfig(projections=(0,), epochs=10, lr=1.0, batch_size=40), seed)
    judges = x.rows(slice(20)), y.rows(slice(20))
    assert power(kernel, *judges) >= power(DeepKernel.from_median(x), *judges) - 1e-6


def test_the_fifth_that_judges_is_not_learned_from():
    """Other images to judge by, the same to learn from: where more epochs are better either way, the kernel is the same."""
    config = KernelConfig(projections=(0,), epochs=3, lr=0.05, batch_size=40)
    x, y, new = clean(100, "fit"), adversarial(100, "fit"), adversarial(20, "new")
    judged = Sample(torch.cat([new.pixels, y.pixels[20:]]), torch.cat([new.features, y.features[20:]]))
    learned = Sample(torch.cat([y.pixels[:80], new.pixels]), torch.cat([y.features[:80], new.features]))
    usual, same, other = (fit_kernel(x, given, config, seed=0).state_dict() for given in (y, judged, learned))
    assert all(torch.equal(usual[name], same[name]) for name in usual)
    assert any(not torch.equal(usual[name], other[name]) for name in usual)


def test_no_epochs_leave_the_median_heuristic(start):
    kernel = fit_kernel(clean(500, "fit"), adversarial(500, "fit"), KernelConfig(projections=(0,), epochs=0), seed=0)
    for parameter, expected in zip(kernel.parameters(), start.parameters(), strict=True):
        assert torch.equal(parameter, expected)


def test_parameters_move_and_come_back_frozen(fitted, start):
    for parameter, before in zip(fitted.parameters(), start.parameters(), strict=True):
        assert not torch.equal(parameter, before)
        assert not parameter.requires_grad
        assert parameter.isfinite()


def test_the_result_is_a_function_of_the_seed():
    few = KernelConfig(epochs=3, batch_size=20)
    torch.manual_seed(1)
    first = fit_kernel(clean(60), adversarial(60), few, seed=5).state_dict()
    torch.manual_seed(2)  # the global stream plays no part
    again = fit_kernel(clean(60), adversarial(60), few, seed=5).state_dict()
    other = fit_kernel(clean(60), adversarial(60), few, seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_samples_of_different_sizes_are_fitted_on_the_smaller():
    kernel = fit_kernel(clean(300), adversarial(70), CONFIG, seed=0)
    start = DeepKernel.from_median(clean(300))
    assert kernel.log_feature_bandwidth.isfinite()
    assert kernel.log_feature_bandwidth != start.log_feature_bandwidth


@pytest.mark.parametrize(("m", "n"), [(1, 20), (20, 1)])
def test_single_images_are_refused(m, n):
    with pytest.raises(InputError, match=f"2 or more images of each kind, got {m} and {n}"):
        fit_kernel(clean(m), adversarial(n), CONFIG, seed=0)


def test_progress_is_told_once_an_epoch():
    told = []
    fit_kernel(clean(20), adversarial(20), KernelConfig(epochs=3), 0, lambda *args: told.append(args[:3]))
    assert told == [(f"kernel {number} of 2", epoch, 3) for number in (1, 2) for epoch in (1, 2, 3)]


def hidden(n, shift, *name):
    """Forty features of which the attack moves the smallest, by four of its deviations; in distances over all it drowns."""
    source = generator(0, "hidden", shift, *name)
    features = torch.randn(n, 40, generator=source) * torch.linspace(0.1, 10, 40)
    features[:, 0] += shift * 0.4
    return Sample(torch.rand(n, 1, 2, 2, generator=source), features)


@pytest.fixture(scope="module")
def plain_and_projected():
    given = hidden(500, 0.0, "fit"), hidden(500, 1.0, "fit")
    return [fit_kernel(*given, KernelConfig(projections=widths, epochs=30), seed=0) for widths in ((0,), (4,))]


def test_a_projection_finds_what_all_features_together_hide(plain_and_projected):
    """On unseen images: where the plain kernel is nearly blind, the learned projection finds most batches."""
    unseen = hidden(400, 0.0, "unseen"), hidden(400, 1.0, "unseen")
    reference = hidden(400, 0.0, "reference")
    plain, projected = (found_aside(kernel, reference, *unseen, 100, seed=1) for kernel in plain_and_projected)
    assert projected > plain + 0.15


def test_a_projection_is_for_features_as_they_are(plain_and_projected):
    """It was learned on features of unit variance; what comes back has that scale taken in."""
    _, projected = plain_and_projected
    assert projected.projection.shape == (40, 4)
    x, y = hidden(200, 0.0, "unseen"), hidden(200, 1.0, "unseen")
    start = DeepKernel.from_median(x, projection=torch.ones(40, 4)).requires_grad_(False)
    assert power(projected, x, y) > power(start, x, y)


@pytest.mark.parametrize("widths", [(0, 4), (4, 0)])
def test_the_kernel_that_finds_more_aside_is_kept(plain_and_projected, widths):
    given = hidden(500, 0.0, "fit"), hidden(500, 1.0, "fit")
    chosen = fit_kernel(*given, KernelConfig(projections=widths, epochs=30), seed=0)
    assert torch.equal(chosen.projection, plain_and_projected[1].projection)


def test_of_equals_the_first_is_kept(monkeypatch):
    monkeypatch.setattr("twoprong.detect.fit.found_aside", lambda *given: 0.5)
    assert fit_kernel(clean(20), adversarial(20), KernelConfig(projections=(0, 4), epochs=1), seed=0).projection is None


def test_what_is_found_aside_is_no_more_than_false_alarms_where_nothing_differs():
    kernel = DeepKernel.from_median(clean(100)).requires_grad_(False)
    assert found_aside(kernel, clean(400, "a"), clean(400, "b"), clean(400, "c"), 50, seed=0) < 0.2


def test_algorithm_1_as_written_moves_every_bandwidth_by_no_more_than_the_rate_allows():
    """One step of Adam an epoch is at most the rate: the reason why the paper's 2e-4 leaves its kernel where it starts."""
    x, y = clean(300, "fit"), adversarial(300, "fit")
    config = KernelConfig(ascent="paper", projections=(0,), epochs=40, lr=2e-4, batch_size=100, pixel_bandwidth=32.0)
    start = DeepKernel.from_median(x, config.beta0, None, 32.0)
    learned = fit_kernel(x, y, config, seed=0)
    for name in ("feature_bandwidth", "pixel_bandwidth"):
        moved = abs(getattr(learned, name) - getattr(start, name)).item()
        assert 0 < moved <= 40 * 2e-4 * 1.01
    assert abs(learned.logit_beta0 - start.logit_beta0).item() <= 40 * 2e-4 * 1.01
    assert power(learned, x, y) > power(start, x, y)  # it ascends
    faster = fit_kernel(x, y, config.model_copy(update={"lr": 0.1}), seed=0)
    assert power(faster, x, y) > power(learned, x, y)

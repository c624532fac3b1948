import pytest
import torch

from twoprong.attacks.pgd import PGD
from twoprong.evaluation.detector.study import SHARES, Pool, _roc, study
from twoprong.seeds import generator

EPS = 0.2


@pytest.fixture(scope="module")
def found(defense, digits):
    chosen = digits.test[:80]
    attacked = {
        eps: PGD(eps=eps)(defense.classifier, chosen.images, chosen.labels, generator(0, eps)).images for eps in (0.05, EPS)
    }
    return study(defense, digits.test, chosen, attacked, 40, EPS, 0)


def test_the_pool_gives_the_deployed_statistic(defense, digits):
    pool = Pool(defense, digits.test.images[:100])
    batch = torch.randperm(100, generator=generator(0, "batch"))[:30]
    assert pool.statistic(batch) == pytest.approx(defense.statistic(digits.test.images[batch]).item(), rel=1e-4, abs=1e-6)


def test_every_curve_is_there_with_an_interval_around_its_rate(found):
    power = found.power
    for curve in (found.false_alarms, power.by_size, power.by_eps, power.by_share, found.skewed, found.shifted):
        assert curve
        for entry in curve:
            low, high = entry.interval
            assert low - 0.5 / entry.independent <= entry.rate <= high + 0.5 / entry.independent
            assert 1 <= entry.independent <= entry.batches
    assert [entry.share for entry in power.by_share] == sorted({max(1, round(40 * share)) / 40 for share in SHARES})
    assert [entry.eps for entry in power.by_eps] == [0.0, 0.05, EPS]
    assert {entry.kind for entry in found.shifted} == {"blur", "jpeg", "brightness", "noise"}
    assert {entry.classes for entry in found.skewed} == {1, 2, 5}


def test_it_says_what_a_detector_does(found):
    """On batches of 40: hardly an alarm on clean ones, all attacked ones found, and more with more that is attacked."""
    power = found.power
    assert all(entry.rate <= 0.15 for entry in found.false_alarms)
    assert power.by_share[-1].rate == 1
    assert power.by_share[0].rate <= power.by_share[-1].rate
    assert power.by_share[-1].undefended < 0.3
    assert power.by_share[-1].defended > power.by_share[-1].undefended
    weak, strong = found.roc
    assert weak.area <= strong.area == 1
    assert next(entry for entry in found.skewed if entry.classes == 1).rate == 1  # one class is another law


def test_a_batch_of_a_mixture_has_the_share_it_says(defense):
    from twoprong.evaluation.detector.study import Study

    work = Study(defense, 0)
    for share in (0.01, 0.25, 1.0):
        for batch in work.mixtures(80, 40, share):
            assert len((batch % 80).unique()) == 40  # no image twice, attacked or not
            assert int((batch >= 80).sum()) == max(1, round(share * 40))


@pytest.mark.parametrize(
    ("clean", "attacked", "area"), [([0.0, 1.0], [2.0, 3.0], 1.0), ([2.0, 3.0], [0.0, 1.0], 0.0), ([1.0, 1.0], [1.0], 0.5)]
)
def test_the_area_under_the_curve_is_the_chance_of_scoring_higher(clean, attacked, area):
    found = _roc(0.1, clean, attacked)
    assert found.area == area
    assert found.power[0] == found.false_alarms[0] == 1
    assert found.power[-1] == found.false_alarms[-1] == 0
    assert found.power == sorted(found.power, reverse=True)


def test_what_is_not_finite_is_above_every_threshold():
    undecided = _roc(0.1, [0.1, 0.2], [float("nan"), float("inf")])
    decided = _roc(0.1, [0.1, 0.2], [0.3, 0.3])
    assert undecided.area == decided.area == 1.0
    assert undecided.power[:-1] == [1.0] * (len(undecided.power) - 1)


def test_it_says_who_is_blamed_and_what_each_kind_of_rescue_leaves(found, defense):
    rows = [entry for entry in found.power.by_share if entry.recall is not None]
    assert rows, "some mixtures are flagged"
    for entry in rows:
        assert 0 <= entry.recall <= 1
        assert set(entry.by_rescue) == {"batch", "suspects"}
        assert entry.by_rescue[defense.config.rescue] == entry.defended
    assert found.power.by_share[-1].false_blame is None, "nobody is clean there"
    most = next(entry for entry in rows if entry.share == 0.75)
    assert most.recall > most.false_blame
    assert sum(found.blamed.attacked) >= 4
    assert len(found.blamed.attacked) == 40

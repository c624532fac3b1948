"""Planted errors in gradients. Those that a whole evaluation must catch are in test_sanity.py."""

from dataclasses import replace

import pytest

from twoprong.defense import Defense
from twoprong.evaluation.accelerated import Accelerated
from twoprong.evaluation.sanity.gradients import check_copy, check_gradients
from twoprong.routes import Denoised

EPS = 0.2


def flagged_through(defense, kind):
    """The defence with a flagged route of another class."""
    route = defense.flagged
    return Defense(**vars(replace(defense.parts, flagged=kind(**route.networks(), **route.settings()))))


class Hidden(Defense):
    def statistic(self, images, reference=None):
        return super().statistic(images.detach(), reference)


def test_a_sound_defence_passes(defense, digits):
    found = check_gradients(defense, digits.test[:40], EPS, 0)
    assert found.status == "passed", found.detail
    assert set(found.values) == {"passing_zero", "passing_error", "flagged_zero", "flagged_error", "statistic_error"}


def test_a_gradient_that_is_only_half_there_is_caught(defense, digits):
    """Backward through the denoiser as if it were a tenth of itself: not zero, but not the slope of what is deployed."""

    class Half(Denoised):
        def restore(self, disturbed):
            whole = super().restore(disturbed)
            return whole.detach() + 0.1 * (whole - whole.detach())

    found = check_gradients(flagged_through(defense, Half), digits.test[:40], EPS, 0)
    assert found.status == "failed"
    assert "flagged" in found.detail


def test_a_statistic_that_is_cut_off_is_caught(defense, digits):
    found = check_gradients(Hidden(**vars(defense.parts)), digits.test[:40], EPS, 0)
    assert found.status == "failed"
    assert "statistic" in found.detail


class Tampered:
    """A target with one of its functions replaced."""

    def __init__(self, target, **functions):
        self.target = target
        vars(self).update(functions)

    def __getattr__(self, name):
        return getattr(self.target, name)


@pytest.mark.parametrize(("kept", "error"), [(0.1, 9.0), (0.0, 1.0), (-1.0, 2.0)], ids=["a tenth", "none", "uphill"])
def test_a_statistic_whose_gradient_is_not_its_slope_is_caught(defense, digits, kept, error):
    """The values are right. Of the gradient only `kept` is there, so the slope is off by 1/kept - 1 of it."""

    def statistic(images, reference=None):
        whole = defense.statistic(images, reference)
        return whole.detach() + kept * (whole - whole.detach())

    found = check_gradients(Tampered(defense, statistic=statistic), digits.test[:40], EPS, 0)
    assert found.status == "failed"
    assert found.detail.startswith("the statistic's gradient is off by")
    assert found.values["statistic_error"] == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize(("kept", "words"), [(0.1, "are off by"), (0.0, "are zero")])
def test_routes_whose_gradients_are_not_their_slopes_are_caught(defense, digits, kept, words):
    def logits(images, *asked):
        whole = defense.logits(images, *asked)
        return whole.detach() + kept * (whole - whole.detach())

    found = check_gradients(Tampered(defense, logits=logits), digits.test[:40], EPS, 0)
    assert found.status == "failed"
    assert found.detail.count(words) == 2  # one of each route


def test_a_copy_in_half_precision_passes_and_one_of_something_else_is_caught(defense, digits):
    quick = Accelerated(defense, None)
    found = check_copy(defense, quick, digits.test[:40], EPS, 0)
    assert found.status == "passed", found.detail
    assert min(found.values.values()) > 0.9

    class Masked(Denoised):
        def disturb(self, images, draws=1, generator=None):
            return super().disturb(images.round(decimals=1).detach() + 0 * images, draws, generator)

    found = check_copy(defense, flagged_through(quick, Masked), digits.test[:40], EPS, 0)
    assert (found.status, found.values["passing_alike"] > 0.9) == ("failed", True)
    assert "flagged alike" in found.detail

    found = check_copy(defense, Hidden(**vars(quick.parts)), digits.test[:40], EPS, 0)
    assert (found.status, "cannot be differentiated" in found.detail) == ("failed", True)

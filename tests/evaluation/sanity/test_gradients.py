"""Planted errors in gradients. Those that a whole evaluation must catch are in test_sanity.py."""

from dataclasses import replace

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
    assert found["status"] == "passed", found["detail"]
    assert set(found["values"]) == {"passing_zero", "passing_error", "flagged_zero", "flagged_error", "statistic_error"}


def test_a_gradient_that_is_only_half_there_is_caught(defense, digits):
    """Backward through the denoiser as if it were a tenth of itself: not zero, but not the slope of what is deployed."""

    class Half(Denoised):
        def restore(self, disturbed):
            whole = super().restore(disturbed)
            return whole.detach() + 0.1 * (whole - whole.detach())

    found = check_gradients(flagged_through(defense, Half), digits.test[:40], EPS, 0)
    assert found["status"] == "failed"
    assert "flagged" in found["detail"]


def test_a_statistic_that_is_cut_off_is_caught(defense, digits):
    found = check_gradients(Hidden(**vars(defense.parts)), digits.test[:40], EPS, 0)
    assert found["status"] == "failed"
    assert "statistic" in found["detail"]


def test_a_copy_in_half_precision_passes_and_one_of_something_else_is_caught(defense, digits):
    quick = Accelerated(defense, None)
    found = check_copy(defense, quick, digits.test[:40], EPS, 0)
    assert found["status"] == "passed", found["detail"]
    assert min(found["values"].values()) > 0.9

    class Masked(Denoised):
        def disturb(self, images, draws=1, generator=None):
            return super().disturb(images.round(decimals=1).detach() + 0 * images, draws, generator)

    found = check_copy(defense, flagged_through(quick, Masked), digits.test[:40], EPS, 0)
    assert (found["status"], found["values"]["passing_alike"] > 0.9) == ("failed", True)
    assert "flagged alike" in found["detail"]

    found = check_copy(defense, Hidden(**vars(quick.parts)), digits.test[:40], EPS, 0)
    assert (found["status"], "cannot be differentiated" in found["detail"]) == ("failed", True)

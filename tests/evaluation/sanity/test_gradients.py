"""Planted errors in gradients. Those that a whole evaluation must catch are in test_sanity.py."""

from twoprong.defense import Defense
from twoprong.evaluation.sanity.gradients import check_copy, check_gradients

EPS = 0.2


def test_a_sound_defence_passes(defense, digits):
    found = check_gradients(defense, digits.test[:40], EPS, 0)
    assert found.status == "passed", found.detail
    assert set(found.values) == {"clean_zero", "clean_error", "denoise_zero", "denoise_error", "statistic_error"}


def test_a_gradient_that_is_only_half_there_is_caught(defense, digits):
    """Backward through the denoiser as if it were a tenth of itself: not zero, but not the slope of what is deployed."""

    class Half(Defense):
        def denoise(self, images, generator=None):
            whole = super().denoise(images, generator)
            return whole.detach() + 0.1 * (whole - whole.detach())

    found = check_gradients(
        Half(defense.classifier, defense.detector, defense.denoiser, defense.config), digits.test[:40], EPS, 0
    )
    assert found.status == "failed"
    assert "denoise" in found.detail


def test_a_statistic_that_is_cut_off_is_caught(defense, digits):
    class Hidden(Defense):
        def statistic(self, images, reference=None):
            return super().statistic(images.detach(), reference)

    hidden = Hidden(defense.classifier, defense.detector, defense.denoiser, defense.config)
    found = check_gradients(hidden, digits.test[:40], EPS, 0)
    assert found.status == "failed"
    assert "statistic" in found.detail


def test_a_copy_in_half_precision_passes_and_one_of_something_else_is_caught(defense, digits):
    quick = defense.accelerated(None)
    found = check_copy(defense, quick, digits.test[:40], EPS, 0)
    assert found.status == "passed", found.detail
    assert min(found.values.values()) > 0.9

    class Masked(Defense):
        def denoise(self, images, generator=None):
            return super().denoise(images.round(decimals=1).detach() + 0 * images, generator)

    masked = Masked(quick.classifier, quick.detector, quick.denoiser, quick.config)
    found = check_copy(defense, masked, digits.test[:40], EPS, 0)
    assert (found.status, found.values["clean_alike"] > 0.9) == ("failed", True)
    assert "denoise alike" in found.detail

    class Deaf(Defense):
        def statistic(self, images, reference=None):
            return super().statistic(images.detach(), reference)

    deaf = Deaf(quick.classifier, quick.detector, quick.denoiser, quick.config)
    found = check_copy(defense, deaf, digits.test[:40], EPS, 0)
    assert (found.status, "cannot be differentiated" in found.detail) == ("failed", True)

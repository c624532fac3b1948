"""An accelerated defence is the defence up to bf16's rounding. Compilation is tried on a GPU only (benchmarks/gpu.py)."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from twoprong.attacks import PGD
from twoprong.attacks.evade import Evade
from twoprong.config import DetectorConfig
from twoprong.defense import Defense
from twoprong.detect.detector import Detector
from twoprong.detect.kernel import DeepKernel
from twoprong.evaluation.accelerated import Accelerated
from twoprong.models.features import Features
from twoprong.recipe import sample
from twoprong.seeds import generator


def test_an_accelerated_defence_looks_and_answers_in_one_compiled_step_each(defense, digits):
    asked = []

    def compiler(step, mode=None):
        def run(*given):
            asked.append((step.__name__, mode))
            return step(*given)

        return run

    whole, quick = Accelerated(defense, None), Accelerated(defense, compiler)
    images = digits.test.images[:50]
    noise = (images + torch.rand(images.shape, generator=generator(0, "noise"))).clamp(0, 1)
    for batch, steps in ((images, ["look"]), (noise, ["look", "answer"])):
        asked.clear()
        found, expected = (one(batch, generator(0, "x")) for one in (quick, whole))
        assert [name for name, mode in asked if name != "_run"] == steps
        assert (found.adversarial, found.statistic) == (expected.adversarial, expected.statistic)
        assert torch.equal(found.logits, expected.logits)


def test_a_compiled_defence_takes_batches_of_several_sizes(defense, digits):
    """By torch's own tracer, without its code generator; a second size is traced with sizes left open."""
    quick = Accelerated(defense, partial(torch.compile, backend="eager"))
    whole = Accelerated(defense, None)
    for size in (20, 30, 25):
        images = digits.test.images[:size]
        found, expected = quick(images, generator(0, "x")), whole(images, generator(0, "x"))
        assert found.statistic == pytest.approx(expected.statistic, abs=1e-5)
        assert found.p_value == pytest.approx(expected.p_value, abs=0.02)
        torch.testing.assert_close(found.logits, expected.logits)


@pytest.mark.parametrize("source", [None, "hidden", ("hidden", "head"), "callable"])
def test_an_accelerated_defence_decides_alike_and_can_be_attacked(defense, digits, source):
    given = (lambda images: images.flatten(1)) if source == "callable" else source
    detector = defense.detector
    if source in ("callable", ("hidden", "head")):  # another space of features needs a test of its own
        extract = Features(defense.classifier, given)
        detector = Detector(
            DeepKernel.from_median(sample(extract, digits.train.images[:200])), sample(extract, digits.train.images[:100])
        )
        detector.calibrate(sample(extract, digits.train.images[100:400]), DetectorConfig(max_batch_size=50), 0)
    whole = Defense(**vars(replace(defense.parts, extractor=Features(defense.classifier, given), detector=detector)))
    quick = Accelerated(whole, compiler=None)
    batch = digits.test[:50]
    assert quick.threshold(50) == whole.threshold(50)
    deployed = whole.statistic(batch.images).item()
    for images in (
        batch.images,
        batch.images.clone().requires_grad_(),
    ):  # the value is the deployed one
        assert quick.statistic(images).item() == pytest.approx(deployed, abs=1e-6)
    exact, rounded = whole(batch.images, generator(0, "x")), quick(batch.images, generator(0, "x"))
    assert (exact.labels == rounded.labels).double().mean() > 0.95
    attack = Evade(eps=0.2, steps=5, penalties=(1.0,))
    found = attack(quick, batch.images, batch.labels, generator(0, "attack")).images
    left = (whole(found, generator(0, "y")).labels == batch.labels).double().mean()
    assert left < 0.8  # gradients in bf16 hurt the exact object


def test_an_accelerated_defence_computes_whole_batches_however_many_are_suspects(defense, digits):
    config = defense.config.model_copy(update={"rescue": "suspects"})
    quick = Accelerated(Defense(**vars(replace(defense.parts, config=config))), None)
    first, rest = digits.test[:40], digits.test.images[40:100]
    attacked = PGD(eps=0.3, steps=10)(defense.classifier, first.images, first.labels, generator(0, "attack")).images
    batch = torch.cat([attacked, rest])
    sizes: set[int] = set()
    hooks = [net.register_forward_pre_hook(lambda _, given: sizes.add(len(given[0]))) for net in quick.flagged.children()]
    found, seen = quick(batch, generator(0, "x")), quick.logits(batch, None, 2, generator(0, "x"))
    for hook in hooks:
        hook.remove()
    assert found.adversarial
    assert 0 < found.suspects.sum() < 100
    assert sizes <= {100, 200}
    calm = ~found.suspects
    torch.testing.assert_close(seen[0, calm], found.logits[calm])

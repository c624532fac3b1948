import asyncio
import base64
import io

import numpy as np
import pytest
from PIL import Image

from twoprong.errors import ConfigError
from twoprong.serve.samples import ATTACKS, COUNT, samples
from twoprong.serve.service import running
from twoprong.serve.settings import ServeSettings
from twoprong.serve.worker import Model, WorkerSettings
from twoprong.shipped import find


def pixels(text):
    return np.array(Image.open(io.BytesIO(base64.b64decode(text)))).astype(int)


def test_clean_samples_cost_no_attack(defense, bundle, digits, monkeypatch):
    monkeypatch.setitem(ATTACKS, "digits", None)
    found = samples(defense, bundle, demo=False)
    assert [one["class"] for one in found] == [digits.classes[label] for label in digits.test.labels[:COUNT]]
    for one, image in zip(found, digits.test.images, strict=False):
        assert one.keys() == {"class", "image"}
        assert np.array_equal(pixels(one["image"]), (image[0] * 255).round())


def test_samples_are_attacked_within_the_ball_and_fool_the_bare_classifier(defense, bundle, digits):
    found = samples(defense, bundle, demo=True)
    assert len(found) == COUNT
    for one in found:
        change = np.abs(pixels(one["attacked"]) - pixels(one["image"]))
        assert 0 < change.max() <= round(255 * 0.3) + 1
    assert sum(one["bare"] != one["class"] for one in found) >= COUNT // 2


def test_bundles_of_the_package_have_samples(defense):
    assert len(samples(defense, find("cifar10-small-hardened"), demo=False)) == COUNT


def test_a_bundle_without_images_in_the_package_has_no_samples_and_no_demo(defense, bundle, monkeypatch):
    monkeypatch.delitem(ATTACKS, "digits")
    assert samples(defense, bundle, demo=False) == []
    with pytest.raises(ConfigError, match="--demo: expected a bundle of the package or of the digits"):
        samples(defense, bundle, demo=True)


def test_a_worker_that_takes_the_place_of_another_attacks_nothing_again():
    class Judges:
        settings, ready, restarts = WorkerSettings("a", demo=True), True, 0

        async def start(self):
            return Model("a", (1, 8, 8), (2, 100), None, 0.05)

        async def stop(self):
            pass

    async def main():
        worker = Judges()
        async with running(ServeSettings(), worker):
            return worker.settings

    assert asyncio.run(main()) == WorkerSettings("a", demo=False)

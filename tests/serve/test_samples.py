import base64
import io

import numpy as np
import pytest
from PIL import Image

from twoprong.errors import ConfigError
from twoprong.serve.samples import ATTACKS, COUNT, samples


def pixels(text):
    return np.array(Image.open(io.BytesIO(base64.b64decode(text)))).astype(int)


def test_samples_are_attacked_within_the_ball_and_fool_the_bare_classifier(defense, bundle, digits):
    found = samples(defense, bundle)
    assert len(found) == COUNT
    assert [one["class"] for one in found] == [digits.classes[label] for label in digits.test.labels[:COUNT]]
    for one in found:
        change = np.abs(pixels(one["attacked"]) - pixels(one["image"]))
        assert 0 < change.max() <= round(255 * 0.3) + 1
    assert sum(one["bare"] != one["class"] for one in found) >= COUNT // 2


def test_a_bundle_without_images_in_the_package_has_no_demo(defense, bundle, monkeypatch):
    monkeypatch.delitem(ATTACKS, "digits")
    with pytest.raises(ConfigError, match="--demo: expected a bundle of the package or of the digits"):
        samples(defense, bundle)

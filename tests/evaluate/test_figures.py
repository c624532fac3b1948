import base64
import io
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image

from twoprong.evaluate.figures import histogram, picture


def test_the_histogram_is_an_svg_with_a_label_that_follows_the_pages_colour_and_is_repeatable():
    def draw():
        return histogram({"clean": [0.0, 0.1], "adversarial": [0.5, 0.7]}, 0.3, "clean against adversarial")

    svg = ElementTree.fromstring(draw())
    assert svg.tag.endswith("svg")
    assert svg.attrib["aria-label"] == "clean against adversarial"
    assert "currentColor" in draw()
    assert "threshold" in "".join(svg.itertext())
    assert draw() == draw()


def test_a_picture_holds_its_pixels():
    for channels in (1, 3):
        image = torch.rand(channels, 5, 7, generator=torch.Generator().manual_seed(channels))
        raw = base64.b64decode(picture(image).removeprefix("data:image/png;base64,"))
        pixels = np.asarray(Image.open(io.BytesIO(raw))).reshape(5, 7, channels)
        assert np.abs(pixels / 255 - image.permute(1, 2, 0).numpy()).max() <= 0.5 / 255 + 1e-6

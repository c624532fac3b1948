import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from twoprong.report.figures import INK, PALETTE, Series, dots, histogram, lines, panel, picture

ONE = Series("one", [0, 1, 2], [0.1, 0.5, 0.9], [[0.0, 0.2], [0.4, 0.6], [0.8, 1.0]], 1)
TWO = Series("two", [0, 1, 2], [0.9, 0.9, 0.2], None, 2)


def test_the_histogram_is_an_svg_with_a_label_that_follows_the_pages_colour_and_is_repeatable():
    def draw():
        return histogram({"clean": [0.0, 0.1], "adversarial": [0.5, 0.7]}, 0.3, "clean against adversarial")

    svg = ElementTree.fromstring(draw())
    assert svg.tag.endswith("svg")
    assert svg.attrib["aria-label"] == "clean against adversarial"
    assert "currentColor" in draw()
    assert "threshold" in "".join(svg.itertext())
    assert draw() == draw()


DRAWN = {
    "lines": lambda label: lines([ONE, TWO], label, x="x", y="y"),
    "named places": lambda label: lines(
        [ONE], label, x="x", y="y", ticks=[(0, "a"), (1, "b"), (2, "c")], level=0.05, top=0.2
    ),
    "one point": lambda label: lines([Series("p", [3], [0.5], [[0.4, 0.6]], 1)], label, x="x", y="y", at=[3], mark=3),
    "dots": lambda label: dots(["first", "second", "third"], [ONE, TWO], label, x="%"),
    "panel": lambda label: panel([-0.001, 0.002], [0.5], 0.009, (-0.01, 0.6), label),
    "panel without clean": lambda label: panel([], [0.5], 0.009, (0.0, 0.6), label),
    "panel below the threshold": lambda label: panel([], [-0.5], 0.009, (-0.6, 0.01), label),
    "panel with a threshold of zero or less": lambda label: panel([0.1], [-0.5, 0.5], -0.1, (-0.6, 0.6), label),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN.keys())
def test_every_figure_is_an_svg_with_its_label_and_no_colour_that_the_page_cannot_change(draw):
    label = 'a "label" with <tags> & signs'
    svg = draw(label)
    assert ElementTree.fromstring(svg).attrib["aria-label"] == label
    assert ElementTree.fromstring(svg).attrib["role"] == "img"
    assert INK not in svg
    without = re.sub(r"var\(--s\d, #[0-9a-f]{6}\)", "", svg)
    assert not any(colour in without for colour in PALETTE)
    assert svg == draw(label)


def test_no_two_figures_of_a_page_share_an_id():
    found = [re.findall(r'\bid="([^"]+)"', lines([ONE], label, x="x", y="y")) for label in ("first", "second")]
    assert found[0]
    assert not set(found[0]) & set(found[1])
    svg = lines([ONE], "first", x="x", y="y")
    for used in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg):
        assert (used[0] or used[1]) in found[0]


def test_a_band_is_drawn_only_where_there_are_intervals():
    with_band = lines([ONE], "with", x="x", y="y")
    without = lines([Series("one", ONE.x, ONE.y, None, 1)], "without", x="x", y="y")
    assert "FillBetween" in with_band
    assert "FillBetween" not in without


def test_a_batch_just_below_the_threshold_is_drawn_left_of_it():
    threshold = 0.009

    def right_end(value):  # of the attacked bar, and where the threshold stands
        svg = panel([], [value], threshold, (-0.01, 0.6), f"at {value}")
        bar = next(path for path in re.findall(r'<path d="([^"]*)"[^>]*fill: var\(--s2', svg) if path)
        heights = {}
        for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", bar):
            heights.setdefault(float(y), []).append(float(x))
        lowest = max(heights)  # SVG counts downwards
        line = re.search(r'd="M ([\d.]+) [^"]*"[^>]*stroke-dasharray', svg)
        return heights[lowest], float(line.group(1))

    xs, line = right_end(threshold * 0.999)
    assert max(xs) <= line + 1e-3
    xs, line = right_end(threshold * 1.001)
    assert min(xs) >= line - 1e-3


def test_a_picture_holds_its_pixels():
    for channels in (1, 3):
        image = torch.rand(channels, 5, 7, generator=torch.Generator().manual_seed(channels))
        raw = base64.b64decode(picture(image).removeprefix("data:image/png;base64,"))
        pixels = np.asarray(Image.open(io.BytesIO(raw))).reshape(5, 7, channels)
        assert np.abs(pixels / 255 - image.permute(1, 2, 0).numpy()).max() <= 0.5 / 255 + 1e-6

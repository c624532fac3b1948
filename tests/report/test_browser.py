"""The page in a real browser: headless Chromium, light and dark, on a desk and on a phone."""

import io
import runpy
from pathlib import Path

import pytest
from PIL import Image

from twoprong.report.evaluation import write_page

example = runpy.run_path(str(Path(__file__).with_name("example.py")))["example"]
SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
CLIPPED = """() => [...document.querySelectorAll('svg text')].filter(text => {
  const inner = text.getBoundingClientRect(), outer = text.closest('svg').getBoundingClientRect();
  return inner.left < outer.left - 1 || inner.right > outer.right + 1
    || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
}).map(text => text.textContent)"""
UNLABELLED = """() => [...document.querySelectorAll('svg, img')].filter(drawn => drawn.tagName === 'IMG'
  ? !(drawn.alt.trim() && drawn.naturalWidth)
  : !(drawn.getAttribute('role') === 'img' && drawn.getAttribute('aria-label').trim())).length"""
LETTERS = """() => [...document.querySelectorAll('svg text')].map(
  text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    write_page(example(), folder / "reliable.html")

    def another_axis(results):  # with other labels
        for batch in (batch for attack in results["attacks"] for batch in attack["batches"]):
            batch["subjects"]["defense"]["statistic"] *= 0.07

    write_page(example(False, another_axis), folder / "unreliable.html")
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_opens_without_errors_requests_or_overflow_and_is_readable(visit, reports, size, scheme):
    page, wrong = visit(reports / "reliable.html", size, scheme)
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(UNLABELLED) == 0
    assert page.locator("svg[role=img]").count() > 10

    shot = Image.open(io.BytesIO(page.screenshot())).convert("L")
    assert len(shot.getcolors()) > 20
    paper, ink = shot.getpixel((3, SIZES[size]["height"] // 2)), page.evaluate("getComputedStyle(document.body).color")
    text = sum(int(part) for part in ink.strip("rgb()").split(",")) / 3
    assert (paper > 200 and text < 100) if scheme == "light" else (paper < 60 and text > 150)


@pytest.mark.parametrize("size", SIZES)
def test_text_in_figures_is_large_enough_to_read(visit, reports, size):
    page, _ = visit(reports / "reliable.html", size)
    heights = page.evaluate(LETTERS)
    upright = [height for height in heights if height > 1]  # a label that stands on its side has no horizontal scale
    assert len(upright) > 50
    assert min(upright) >= 10


def test_the_first_thing_an_unreliable_page_says_is_that_it_is(visit, reports):
    for size in SIZES:
        page, wrong = visit(reports / "unreliable.html", size, "dark")
        assert wrong == []
        assert page.evaluate(CLIPPED) == []
        assert page.inner_text("body").lstrip().startswith("UNRELIABLE: 1 sanity check failed")
        assert page.locator(".verdict").bounding_box()["y"] < 1
        assert page.title().startswith("UNRELIABLE")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_opens_in_green_only_above_a_worst_case_that_holds(visit, tmp_path, scheme):
    """Red where next to nothing is left, the text's colour in between: as a reader sees it."""
    seen = {}
    for share in (0.0, 0.3, 0.7):

        def change(results, share=share):
            results["worst_case"]["defense"]["per_batch"] = share
            results["sanity"] = [check for check in results["sanity"] if check["status"] == "passed"]
            results["attacks"], results["curve"], results["pictures"] = results["attacks"][:1], [], []

        write_page(example(True, change), tmp_path / "page.html")
        page, _ = visit(tmp_path / "page.html", "desk", scheme)
        colour = page.eval_on_selector(".verdict", "told => getComputedStyle(told).color")
        seen[share] = [int(part) for part in colour.strip("rgb()").split(",")]
    red, plain, green = seen.values()
    assert red[0] > red[1]
    assert max(plain) - min(plain) < 30
    assert green[1] > green[0]


def test_these_tests_see_what_is_wrong(visit, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<body style="margin: 0"><div style="width: 2000px">wide</div><img src="missing.png"><svg width="20" height="20">'
        '<text x="15" y="15">outside</text></svg><script>console.error("said"); nowhere()</script>'
    )
    page, wrong = visit(bad, "phone")
    assert any("said" in one for one in wrong)
    assert any("nowhere" in one for one in wrong)
    assert any(one.endswith("missing.png") for one in wrong)
    assert page.evaluate("document.documentElement.scrollWidth") > SIZES["phone"]["width"]
    assert page.evaluate(CLIPPED) == ["outside"]

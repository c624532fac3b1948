"""The demo's page, made of a small defence, and in a real browser."""

import re
from dataclasses import asdict, replace

import pytest

from twoprong.demo import photographs as module
from twoprong.demo.photographs import SHOWN, photographs
from twoprong.measure import score
from twoprong.presets import PRESETS
from twoprong.report.demo import Shown, write_report
from twoprong.results.demo import DemoData, DemoResults, DemoScores
from twoprong.seeds import generator

WIDTHS = {"desk": 1280, "phone": 390}
REACHING = r"""(?:src|href)=["'](?!data:|#)[^"']*|@import|url\((?!#|data:)[^)]*|<script|<link"""


@pytest.fixture(scope="module")
def pages(defense, digits, tmp_path_factory):
    """The page with photographs (of digits, with long names for their classes) and the page without."""
    folder = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ATTACK", replace(module.ATTACK, eps=0.2, step=0.05))
        part = photographs(defense, replace(digits, classes=("automobile",) * 10), seed=0)
    runs = {50: {kind: score(defense, digits.test, 50, 1, generator(0, kind)) for kind in ("clean", "attacked")}}
    results = DemoResults(
        format=1,
        seed=0,
        data=DemoData(name="digits", test_images=400, rounds=1),
        attack=asdict(module.ATTACK),
        batches={"50": {kind: DemoScores(**asdict(found)) for kind, found in runs[50].items()}},
        photographs=part.results,
        config=PRESETS["digits"].model_dump(mode="json"),
        seconds=dict.fromkeys(("train_classifier", "fit", "compare", "photographs"), 1.0),
    )
    rows = dict.fromkeys(("clean", "adversarial", "denoised"), digits.test.images[:10])
    shown = Shown(rows, digits.test.labels[:10], digits.classes, defense)
    for name, given in (("with", part), ("without", None)):
        facts = results.model_copy(update={"photographs": given and given.results})
        write_report(folder / f"{name}.html", facts, runs, shown, given and given.shown)
    return folder


def test_the_photographs_are_on_the_page_where_there_are_any(pages):
    page, plain = ((pages / f"{name}.html").read_text() for name in ("with", "without"))
    assert page.count("<img") == page.count("alt=") == 3 * 10 + 3 * SHOWN
    assert page.count("automobile, read as automobile") == 3 * SHOWN
    assert plain.count("<img") == 3 * 10
    assert "photographs" not in plain
    assert len(re.findall(r"<td>\d+, (?:clean|attacked)</td>", page)) == 8


@pytest.mark.parametrize("name", ["with", "without"])
def test_the_page_reaches_for_nothing(pages, name):
    assert re.findall(REACHING, (pages / f"{name}.html").read_text()) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", WIDTHS)
def test_the_page_opens_without_errors_or_overflow(visit, pages, size, scheme):
    page, wrong = visit(pages / "with.html", size, scheme)
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[size]
    cut = "[...document.querySelectorAll('.strip span')].filter(said => said.scrollWidth > said.clientWidth).length"
    assert page.evaluate(cut) == 0

import copy
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import power  # noqa: E402

PUBLISHED = ROOT / "results" / "detector.json"


@pytest.fixture
def result():
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_the_published_page_and_figure_are_made_from_the_published_numbers(result, tmp_path):
    (tmp_path / "detector.json").write_text(json.dumps(result), encoding="utf-8")
    power.show(tmp_path / "detector")
    page = (tmp_path / "detector.md").read_text(encoding="utf-8")
    assert page == PUBLISHED.with_suffix(".md").read_text(encoding="utf-8")
    assert (tmp_path / "detector.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_every_rate_stands_in_the_row_of_its_size(result):
    """Ours has single images, for which the other kernels have no score."""
    page = power.markdown(result, "x").split("## Found at 2/255, all adversarial, by batch size")[1]
    cells = [row.strip("| ").split(" | ") for row in page.splitlines() if "batches of" in row]
    rows = {place: rates for place, *rates in cells}
    for number, one in enumerate(result["kernels"].values()):
        for entry in one["by_size"]["2"]:
            if entry["size"] > 1:
                assert rows[f"batches of {entry['size']}"][number].startswith(f"{entry['rate']:.1%} (")


def test_another_number_is_another_page(result):
    changed = copy.deepcopy(result)
    changed["kernels"]["ours"]["by_eps"][0]["rate"] = 0.123
    assert power.markdown(changed, "x") != power.markdown(result, "x")
    assert "12.3%" in power.markdown(changed, "x")


def test_another_kernel_is_learned_on_the_same_images_and_calibrated(defense, digits):
    """The bundle's reference and thresholds' sizes, another kernel, thresholds of its own."""
    other = power.with_kernel(defense, digits, defense.config, {"projections": (3,), "epochs": 1})
    assert other.detector.kernel.projection.shape[1] == 3
    assert other.detector.batch_sizes == defense.detector.batch_sizes[1:]  # single images need a score, not a kernel
    assert other.threshold(20) != defense.threshold(20)
    assert (other.detector.reference_pixels == defense.detector.reference_pixels).all()
    assert set(other.detector.calibrated_on.tolist()) == set(defense.detector.calibrated_on.tolist())


@pytest.mark.parametrize(
    ("row", "pick"),
    [
        ("8/255, 30 % of a batch of 100", lambda one: one["goals"]["8/255, 30 %"]),
        ("8/255, 10 % of a batch of 100", lambda one: one["goals"]["8/255, 10 %"]),
        ("2/255, 100 % of a batch of 100", lambda one: one["goals"]["2/255, 100 %"]),
        ("8/255, batches of 10", lambda one: one["goals"]["8/255, 100 %, batches of 10"]),
        ("2/255, batches of 10", lambda one: {e["size"]: e["rate"] for e in one["by_size"]["2"]}[10]),
    ],
)
def test_the_table_in_the_docs_is_of_the_published_numbers(result, row, pick):
    cells = " | ".join(f"{100 * pick(one):.1f} %" for one in result["kernels"].values())
    assert f"| {row} | {cells} |" in (ROOT / "docs" / "detector.md").read_text(encoding="utf-8")

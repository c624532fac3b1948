"""report.html: the results of an evaluation as one self-contained page, drawn from results.json alone."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twoprong.report.curves import curve_figures
from twoprong.report.detector import detector_figures
from twoprong.report.histograms import panels
from twoprong.report.pages import templates
from twoprong.report.suspects import figure
from twoprong.report.words import (
    NORMS,
    SUBJECTS,
    THREATS,
    batches_of,
    between,
    budget,
    by_threat,
    duration,
    headline,
    headline_alarms,
    hidden,
    intervals,
    percent,
    subjects,
    verdict,
)
from twoprong.results import EvaluationResults
from twoprong.results.evaluation import Picture
from twoprong.storage import write_atomic

ROWS = {"clean": "clean", "adversarial": "attacked", "difference": "difference ×10", "denoised": "denoised"}
TARGETS = {
    "bare": "the bare classifier",
    "denoiser": "the denoiser on every batch",
    "robust": "the robust network alone",
    "gate": "the gate without the test",
    "reject": "refusing",
    "magnet": "MagNet",
    "against": "the other bundle",
}
STATUSES = ("failed", "not converged", "passed", "not applicable")
PANELS = 8  # histograms shown at once; the rest can be opened


def write_page(results: EvaluationResults, path: Path) -> None:
    """Write the page; it needs no network, no script and no other file. Parts that were not run are left out or said so."""
    environment = templates()
    environment.filters |= {"percent": percent, "between": between, "duration": duration, "batches_of": batches_of}
    environment.filters["budget"] = lambda eps: budget(eps, results.run.norm)
    worst = results.worst_case.get("defense")
    chosen = Counter(worst.chosen if worst else ())
    page = environment.get_template("report.html.j2").render(
        results=results,
        verdict=verdict(results),
        intervals=intervals(results),
        headline=headline(results),
        hidden=hidden(results),
        alarms=headline_alarms(results),
        groups=by_threat(attack for attack in results.attacks if attack.slots is None),
        parts=by_threat(attack for attack in results.attacks if attack.slots is not None),
        chosen=chosen,
        threats=THREATS,
        names=SUBJECTS,
        rows=ROWS,
        subjects=subjects(results),
        targets=TARGETS,
        norm=NORMS.get(results.run.norm, results.run.norm),
        curves=curve_figures(results),
        detector=detector_figures(results),
        panels=panels(results),
        shown=PANELS,
        strips=_strips(results, chosen),
        mixed=[] if results.study is None else [row for row in results.study.power.by_share if row.by_rescue],
        blamed=figure(None if results.study is None else results.study.blamed),
        checks=sorted(results.sanity, key=lambda check: STATUSES.index(check.status)),
        settings=json.dumps(results.defense.config, indent=2, ensure_ascii=False),
    )
    write_atomic(path, lambda file: file.write_text(page, encoding="utf-8"))


@dataclass(frozen=True)
class Cell:
    """A picture, described by `alt`, with what the classifier says of it; nothing where it is not asked."""

    src: str
    alt: str
    said: str | None
    right: bool


@dataclass(frozen=True)
class Strip:
    """The pictures of one attack, image by image, each in all its rows."""

    attack: str
    rows: Sequence[str]
    images: Sequence[Sequence[Cell]]


def _strips(results: EvaluationResults, chosen: Counter[str]) -> list[Strip]:
    """The pictures under their attack; what hurts most comes first."""
    classes = results.defense.classes

    def word(label: int) -> str:
        return classes[label] if classes and label < len(classes) else str(label)

    def cell(picture: Picture, row: str) -> Cell:
        said = word(picture.says[row]) if row in picture.says else None
        what = "difference (×10) made to the" if row == "difference" else ROWS[row]
        alt = f"{what} image of {word(picture.label)}" + ("" if said is None else f", read as {said}")
        return Cell(picture.images[row], alt, said, said == word(picture.label))

    def strip(attack: str) -> Strip:
        group = [picture for picture in results.pictures if picture.attack == attack]
        rows = [row for row in ROWS if all(row in picture.images for picture in group)]
        return Strip(attack, rows, [[cell(picture, row) for row in rows] for picture in group])

    attacks = dict.fromkeys(picture.attack for picture in results.pictures)
    return [strip(attack) for attack in sorted(attacks, key=lambda attack: -chosen[attack])]

"""The demo's report: one self-contained HTML file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from twoprong.defense import Defense
from twoprong.measure import Scores
from twoprong.report.figures import histogram, picture
from twoprong.report.pages import templates
from twoprong.report.suspects import figure
from twoprong.results.demo import DemoResults
from twoprong.results.detector import BlamedBatch
from twoprong.storage import write_atomic


@dataclass(frozen=True, eq=False)
class Shown:
    """Pictures for the page: `rows` show the same things before and after, each named; `defense` says what they are.

    `blamed` is a flagged batch with its suspects, if there is one.
    """

    rows: Mapping[str, Tensor]
    labels: Tensor
    classes: Sequence[str]
    defense: Defense
    blamed: BlamedBatch | None = None


def write_report(
    path: Path,
    results: DemoResults,
    runs: Mapping[int, Mapping[str, Scores]],
    digits: Shown,
    photographs: Shown | None = None,
) -> None:
    """Write the page; it needs no network and no other file."""
    figures = [
        {
            "size": size,
            "svg": Markup(
                histogram(
                    {"clean": run["clean"].statistics, "adversarial": run["attacked"].statistics},
                    run["clean"].threshold,
                    f"Histogram of the statistic for batches of {size}: clean against adversarial, threshold drawn",
                )
            ),
        }
        for size, run in runs.items()
    ]
    page = (
        templates()
        .get_template("demo.html.j2")
        .render(
            results=results,
            runs=runs,
            figures=figures,
            strips=_strips(digits),
            photographs=results.photographs,
            photo_strips=[] if photographs is None else _strips(photographs),
            blamed=figure(digits.blamed),
            photo_blamed=None if photographs is None else figure(photographs.blamed),
        )
    )
    write_atomic(path, lambda file: file.write_text(page, encoding="utf-8"))


@torch.no_grad()
def _strips(shown: Shown) -> list[dict[str, Any]]:
    """Rows of pictures of the same things, each with what the bare classifier says of it."""
    strips, classes = [], shown.classes
    for name, images in shown.rows.items():
        said = shown.defense.classifier(images).argmax(1).tolist()
        cells = [
            {"src": picture(image), "said": classes[guess], "true": classes[true], "right": guess == true}
            for image, guess, true in zip(images, said, shown.labels.tolist(), strict=True)
        ]
        strips.append({"name": name, "cells": cells})
    return strips

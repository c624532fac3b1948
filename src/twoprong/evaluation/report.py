"""The demo's report: one self-contained HTML file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from twoprong.data.tensors import Labelled
from twoprong.defense import Defense
from twoprong.evaluation.figures import histogram, picture
from twoprong.evaluation.measure import Scores
from twoprong.evaluation.page import templates
from twoprong.evaluation.photographs import Photographs
from twoprong.storage import write_atomic

DIGITS = "0123456789"


def write_report(
    path: Path,
    results: dict[str, Any],
    runs: Mapping[int, Mapping[str, Scores]],
    clean: Labelled,
    attacked: Labelled,
    denoised: Tensor,
    defense: Defense,
    photographs: Photographs | None = None,
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
    rows = {"clean": clean.images, "adversarial": attacked.images, "denoised": denoised}
    page = (
        templates()
        .get_template("demo.html.j2")
        .render(
            results=results,
            runs=runs,
            figures=figures,
            strips=_strips(rows, clean.labels, defense, DIGITS),
            photographs=results["photographs"],
            photo_strips=_photo_strips(photographs),
        )
    )
    write_atomic(path, lambda file: file.write_text(page, encoding="utf-8"))


def _photo_strips(photographs: Photographs | None) -> list[dict[str, Any]]:
    if photographs is None:
        return []
    return _strips(photographs.rows, photographs.labels, photographs.defense, photographs.classes)


@torch.no_grad()
def _strips(rows: Mapping[str, Tensor], labels: Tensor, defense: Defense, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of pictures of the same things, each with what the bare classifier says of it."""
    strips = []
    for name, images in rows.items():
        said = defense.logits(images, "clean")[0].argmax(1).tolist()
        cells = [
            {"src": picture(image), "said": classes[guess], "true": classes[true], "right": guess == true}
            for image, guess, true in zip(images, said, labels.tolist(), strict=True)
        ]
        strips.append({"name": name, "cells": cells})
    return strips

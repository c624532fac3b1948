"""The demo's report: one self-contained HTML file."""

from collections.abc import Mapping
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
from twoprong.storage import write_atomic


def write_report(
    path: Path,
    results: dict[str, Any],
    runs: Mapping[int, Mapping[str, Scores]],
    clean: Labelled,
    attacked: Labelled,
    denoised: Tensor,
    defense: Defense,
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
    strips = [
        _strip("clean", clean.images, clean.labels, defense),
        _strip("adversarial", attacked.images, attacked.labels, defense),
        _strip("denoised", denoised, attacked.labels, defense),
    ]
    page = templates().get_template("demo.html.j2").render(results=results, runs=runs, figures=figures, strips=strips)
    write_atomic(path, lambda file: file.write_text(page, encoding="utf-8"))


@torch.no_grad()
def _strip(name: str, images: Tensor, labels: Tensor, defense: Defense) -> dict[str, Any]:
    """A row of pictures, each with what the bare classifier says of it."""
    said = defense.classifier(images).argmax(1).tolist()
    cells = [
        {"src": picture(image), "said": guess, "true": true, "right": guess == true}
        for image, guess, true in zip(images, said, labels.tolist(), strict=True)
    ]
    return {"name": name, "cells": cells}

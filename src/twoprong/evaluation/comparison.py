"""report.html of a reproduction: the paper's numbers and ours, drawn from its results.json alone."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from twoprong.evaluation.figures import Series, dots
from twoprong.evaluation.page import templates
from twoprong.storage import write_atomic


def write_comparison(results: dict[str, Any], path: Path) -> None:
    """Write the page; it needs no network, no script and no other file."""
    rows = [{"name": row["name"], "cells": row["cells"], "figure": _figure(row)} for row in results["rows"]]
    page = templates().get_template("reproduction.html.j2").render(results=results, rows=rows)
    write_atomic(path, lambda file: file.write_text(page, encoding="utf-8"))


def _figure(row: dict[str, Any]) -> Markup | None:
    """The row's percentages from left to right, a line for each column; None where it has none."""
    cells = [cell for cell in row["cells"] if cell["unit"] == "%"]
    if not cells:
        return None
    printed = [place for place, cell in enumerate(cells) if cell["paper"] is not None]
    paper = Series("paper", printed, [cells[place]["paper"] / 100 for place in printed], colour=2)
    shares = [cell["ours"] / 100 for cell in cells]
    intervals = [[end / 100 for end in cell["interval"] or (cell["ours"],) * 2] for cell in cells]
    ours = Series("ours", range(len(cells)), shares, intervals, colour=1)
    label = f"{row['name']}: the paper's percentages and ours with 95 % intervals, by column"
    return Markup(dots([cell["column"] for cell in cells], [paper, ours], label, x="% read correctly"))

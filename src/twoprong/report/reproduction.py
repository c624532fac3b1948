"""A reproduction's numbers beside the paper's, as texts and as report.html, from its results.json alone."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from twoprong.report.evaluation import templates
from twoprong.report.figures import Series, dots
from twoprong.storage import write_atomic


def write_comparison(results: dict[str, Any], path: Path) -> None:
    """Write the page; it needs no network, no script and no other file."""
    rows = [{"name": row["name"], "cells": row["cells"], "figure": _figure(row)} for row in results["rows"]]
    environment = templates()
    environment.filters |= {"show": show, "column_text": column_text}
    page = environment.get_template("reproduction.html.j2").render(results=results, rows=rows, printed=_printed(results))
    write_atomic(path, lambda file: file.write_text(page, encoding="utf-8"))


def show(value: float | None, unit: str = "%") -> str:
    """A number as tables print it: two decimals for percentages, as in the paper."""
    if value is None:
        return "–"
    return f"{value:.2f}" if unit == "%" else f"{value:.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def column_text(cell: dict[str, Any]) -> str:
    """The column's name; of one that is a classifier on which attacks are made, also how well that reads clean images."""
    reads = cell.get("surrogate_accuracy")  # results of before have none
    return cell["column"] + ("" if reads is None else f" (reads {reads:.1f} %)")


def row_texts(results: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Per cell: row, column, the paper's number, ours with its interval; then the rows that are only quoted."""
    texts = []
    for row in results["rows"]:
        for cell in row["cells"]:
            paper, ours = show(cell["paper"], cell["unit"]), show(cell["ours"], cell["unit"])
            if cell["spread"] is not None:
                paper += f" ± {cell['spread']:.2f}"
            if cell["interval"] is not None:
                ours += f" ({cell['interval'][0]:.1f} to {cell['interval'][1]:.1f})"
            texts.append((row["name"], column_text(cell), paper, ours))
    units = [cell["unit"] for cell in results["rows"][0]["cells"]]
    for row in results["quoted"]:
        for column, value, unit in zip(results["columns"], row["paper"], units, strict=True):
            texts.append((row["name"], column, show(value, unit), "not run"))
    return texts


def _printed(results: dict[str, Any]) -> bool:
    """Whether the paper prints any number for what was measured."""
    return any(cell["paper"] is not None for row in results["rows"] for cell in row["cells"])


def _figure(row: dict[str, Any]) -> Markup | None:
    """The row's percentages from left to right, a line for each column; None where it has none."""
    cells = [cell for cell in row["cells"] if cell["unit"] == "%"]
    if not cells:
        return None
    printed = [place for place, cell in enumerate(cells) if cell["paper"] is not None]
    paper = [Series("paper", printed, [cells[place]["paper"] / 100 for place in printed], colour=2)] if printed else []
    shares = [cell["ours"] / 100 for cell in cells]
    intervals = [[end / 100 for end in cell["interval"] or (cell["ours"],) * 2] for cell in cells]
    ours = Series("ours", range(len(cells)), shares, intervals, colour=1)
    label = f"{row['name']}: the paper's percentages and ours with 95 % intervals, by column"
    return Markup(dots([cell["column"] for cell in cells], [*paper, ours], label, x="% read correctly"))

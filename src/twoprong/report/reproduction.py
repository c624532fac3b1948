"""A reproduction's numbers beside the paper's, as texts and as report.html, from its results.json alone."""

from pathlib import Path

from markupsafe import Markup

from twoprong.report.figures import Series, dots
from twoprong.report.pages import templates
from twoprong.report.words import batches_of
from twoprong.results import ReproductionResults
from twoprong.results.reproduction import Cell, Row
from twoprong.storage import write_atomic


def write_comparison(results: ReproductionResults, path: Path) -> None:
    """Write the page; it needs no network, no script and no other file."""
    rows = [{"name": row.name, "cells": row.cells, "figure": _figure(row)} for row in results.rows]
    environment = templates()
    environment.filters |= {"show": show, "column_text": column_text}
    page = environment.get_template("reproduction.html.j2").render(results=results, rows=rows, printed=_printed(results))
    write_atomic(path, lambda file: file.write_text(page, encoding="utf-8"))


def to_markdown(results: ReproductionResults) -> str:
    """results.md: the numbers as a table, and how they were made."""
    run, made = results.run, results.made_with
    lines = [f"# {results.title}", "", f"{results.source} of the DAD paper (ICML 2025). {results.note}", ""]
    if results.warning:
        lines += [f"**{results.warning}**", ""]
    lines += ["| row | column | paper | ours (95 %) |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(text)} |" for text in row_texts(results)]
    lines += ["", f"{run.data}, seed {run.seed}, scale {results.scale}; {made.device}, torch {made.torch}."]
    lines += [f"Parts resumed from commit {made.mixed}."] if made.mixed else []
    if run.classifier:
        lines.append(f"Every protected classifier was a {run.classifier}, whatever a row is called.")
    if run.command:
        lines += ["", f"    {run.command}"]
    return "\n".join(lines) + "\n"


def show(value: float | None, unit: str = "%", spread: float | None = None) -> str:
    """A number as tables print it: two decimals for percentages, as in the paper, and its spread after ±."""
    if value is None:
        return "–"
    text = f"{value:.2f}" if unit == "%" else f"{value:.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    return text if spread is None else f"{text} ± {spread:.2f}"


def column_text(cell: Cell) -> str:
    """The column's name; of one that is a classifier on which attacks are made, also how well that reads clean images."""
    reads = cell.surrogate_accuracy
    return cell.column + ("" if reads is None else f" (reads {reads:.1f} %)")


def row_texts(results: ReproductionResults) -> list[tuple[str, str, str, str]]:
    """Per cell: row, column, the paper's number, ours with its interval; then the rows that are only quoted."""
    texts = []
    for row in results.rows:
        for cell in row.cells:
            paper, ours = show(cell.paper, cell.unit, cell.spread), show(cell.ours, cell.unit, cell.deviation)
            if cell.runs is not None:
                ours += f", {len(cell.runs)} runs"
            if cell.quoted is not None:
                ours += f" ({cell.quoted[0]:.1f} to {cell.quoted[1]:.1f})"
                ours += f", {batches_of(cell.batches)}" if cell.batches else ""
            texts.append((row.name, column_text(cell), paper, ours))
    units = [cell.unit for cell in results.rows[0].cells]
    for quoted in results.quoted:
        spreads = quoted.spread or [None] * len(units)
        for column, value, unit, spread in zip(results.columns, quoted.paper, units, spreads, strict=True):
            texts.append((quoted.name, column, show(value, unit, spread), "not run"))
    return texts


def _printed(results: ReproductionResults) -> bool:
    """Whether the paper prints any number for what was measured."""
    return any(cell.paper is not None for row in results.rows for cell in row.cells)


def _figure(row: Row) -> Markup | None:
    """The row's percentages from left to right, a line for each column; None where it has none."""
    cells = [cell for cell in row.cells if cell.unit == "%"]
    if not cells:
        return None
    printed = {place: cell.paper / 100 for place, cell in enumerate(cells) if cell.paper is not None}
    paper = [Series("paper", list(printed), list(printed.values()), colour=2)] if printed else []
    shares = [cell.ours / 100 for cell in cells]
    intervals = [[end / 100 for end in cell.quoted or (cell.ours,) * 2] for cell in cells]
    ours = Series("ours", range(len(cells)), shares, intervals, colour=1)
    label = f"{row.name}: the paper's percentages and ours with 95 % intervals, by column"
    return Markup(dots([cell.column for cell in cells], [*paper, ours], label, x="% classified correctly"))

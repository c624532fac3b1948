"""`twoprong demo`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from twoprong.cli.output import out, print_json, progress_bars
from twoprong.demo.run import demo as run_demo
from twoprong.results.demo import DemoPhotographs, DemoResults


def demo(
    directory: Annotated[Path, typer.Option("--out", help="Where bundle/, results.json and report.html go.")] = Path(
        "demo-out"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Decides every number but the seconds.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")] = False,
) -> None:
    """See the method work, in a minute or two on a CPU: fitted on digits, then on photographs as it comes."""
    with progress_bars() as progress:
        results = run_demo(directory, seed, progress)
    if as_json:
        print_json(results.as_dict())
        return
    out.print(_table(results))
    if results.photographs is not None:
        out.print(_photographs(results.photographs))
    seconds = sum(results.seconds.values())
    out.print(
        f"PGD (eps {results.attack['eps']:g} on digits) knows the classifier, not the defence; one who knows both "
        f"gets further (README). {seconds:.0f} s in all.\nLook at {directory / 'report.html'}; the fitted defence is in "
        f"{directory / 'bundle'} (twoprong inspect {directory / 'bundle'})."
    )


def _table(results: DemoResults) -> Table:
    table = Table(title=f"{results.data.test_images} unseen digits, in batches")
    for column in ("batches of", "images", "bare", "defended", "flagged"):
        table.add_column(column, justify="left" if column == "images" else "right")
    for size, run in results.batches.items():
        for kind, row in run.items():
            flagged = f"{row.flagged:.1%} {'found' if kind == 'attacked' else 'false alarms'}"
            table.add_row(size, kind, f"{row.bare:.1%}", f"{row.defended:.1%}", flagged)
    return table


def _photographs(part: DemoPhotographs) -> Table:
    table = Table(title=f"Photographs through {part.bundle}, in batches of {part.batch_size}")
    for column in ("images", "statistic", "threshold", "test says", "bare", "defended"):
        table.add_column(column, justify="left" if column in ("images", "test says") else "right")
    for batch in part.batches:
        says = "attacked" if batch.flagged else "clean"
        kind = "attacked" if batch.attacked else "clean"
        numbers = (f"{batch.statistic:.4f}", f"{batch.threshold:.4f}")
        table.add_row(kind, *numbers, says, f"{batch.bare:.1%}", f"{batch.defended:.1%}")
    return table

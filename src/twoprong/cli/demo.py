"""`twoprong demo`."""

from rich.table import Table

from twoprong.cli.arguments.demo import DemoArguments
from twoprong.cli.output import out, print_json, progress_bars
from twoprong.demo.run import demo as run_demo
from twoprong.malloc import keep_freed_memory
from twoprong.results.demo import DemoPhotographs, DemoResults, KnowingAttack


def demo(given: DemoArguments) -> None:
    """Run the demo and show its tables."""
    directory = given.directory
    keep_freed_memory()  # it runs on the CPU
    with progress_bars() as progress:
        results = run_demo(directory, given.seed, progress)
    if given.as_json:
        print_json(results.as_dict())
        return
    out.print(_table(results))
    if results.photographs is not None:
        out.print(_photographs(results.photographs))
        if results.photographs.knowing:
            out.print(_knowing(results.photographs.knowing))
    seconds = sum(results.seconds.values())
    out.print(
        f"PGD (eps {results.attack['eps']:g} on digits) knows the classifier, not the defence. "
        f"{seconds:.0f} s in all.\nLook at {directory / 'report.html'}; the fitted defence is in "
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


def _knowing(rows: list[KnowingAttack]) -> Table:
    table = Table(title=f"{rows[0].images} photographs before an attacker who knows everything (a short attack)")
    for column in ("bundle", "attack", "clean", "attacked", "test says"):
        table.add_column(column, justify="right" if column in ("clean", "attacked") else "left")
    for row in rows:
        says = "attacked" if row.flagged else "clean"
        table.add_row(row.bundle, row.attack["name"], f"{row.clean:.1%}", f"{row.attacked:.1%}", says)
    return table

"""How long work reports itself: the library calls, whoever shows it (a progress bar, a log) listens."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """Called with the stage's name, how much is done, how much there is, and a short note such as a loss."""

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None: ...


def silent(stage: str, done: int, total: int, note: str = "") -> None:
    """A listener that hears everything and says nothing."""


@contextmanager
def showing(progress: Progress | bool | None) -> Iterator[Progress]:
    """The listener that is meant: the one given; with None or True bars on stderr if that is a terminal; else none."""
    if callable(progress):
        yield progress
    elif progress is False or sys.stderr is None or not sys.stderr.isatty():
        yield silent
    else:
        from rich.console import Console

        with bars(Console(stderr=True)) as listen:
            yield listen


@contextmanager
def bars(console: "Console") -> Iterator[Progress]:
    """A listener that draws one bar per stage."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with RichProgress(*columns, console=console) as shown:
        tasks: dict[str, Any] = {}

        def listen(stage: str, done: int, total: int, note: str = "") -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(stage, total=total, note=note)
            shown.update(tasks[stage], completed=done, total=total, note=note)

        yield listen

"""What the command line shows: progress on stderr, results on stdout; for machines one JSON document and no colour."""

import json
import logging
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from twoprong.errors import InputError, printable
from twoprong.progress import Progress, bars

out = Console()
err = Console(stderr=True)


def set_up_logging() -> None:
    """Send the library's warnings to stderr, beside the progress bars instead of through them."""
    handler = RichHandler(console=err, show_path=False, show_time=False)
    logging.getLogger("twoprong").handlers = [handler]


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def shown(name: object) -> str:
    """A name as a table or a line can show it, whatever bytes and brackets are in it."""
    return escape(printable(name))


def check_utf8(option: str, place: Path | None) -> None:
    """Raise InputError for a directory to write to whose name is not UTF-8: safetensors opens no file in it."""
    try:
        str(place).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{option} {printable(place)}: expected a name in UTF-8; choose another") from error


def command_line() -> str:
    """The command as it was given, for files in UTF-8: an argument that is none is written with escapes."""
    return printable(shlex.join(["twoprong", *sys.argv[1:]]))


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A listener that draws one bar per stage on a terminal, and writes one line per finished stage elsewhere."""
    if not err.is_terminal:
        yield _Lines()
        return
    with bars(err) as listen:
        yield listen


class _Lines:
    """Progress for log files: a line when a stage is done, with the seconds since the one before, and one in between."""

    def __init__(self, pause: float = 30.0) -> None:
        self.pause = pause  # seconds between lines of a stage that takes long
        self.since = self.said = time.perf_counter()

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        now, more = time.perf_counter(), f" ({note})" if note else ""
        if done == total:
            err.print(f"{stage}: done in {now - self.since:.1f} s{more}", highlight=False)
            self.since = self.said = now
        elif now - self.said >= self.pause:
            err.print(f"{stage}: {done / total:.0%}{more}", highlight=False)
            self.said = now

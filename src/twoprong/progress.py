"""How long work reports itself: the library calls, whoever shows it (a progress bar, a log) listens."""

from typing import Protocol


class Progress(Protocol):
    """Called with the stage's name, how much is done, how much there is, and a short note such as a loss."""

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None: ...


def silent(stage: str, done: int, total: int, note: str = "") -> None:
    """The default listener: hears everything, says nothing."""

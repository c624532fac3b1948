"""Where the time of a run goes, and how much of it is left."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from twoprong.progress import Progress


class Clock:
    """Progress over a whole run in rough units of cost. The time left is what the units computed so far have taken.

    `parts` are seconds of computing by part, those of an earlier, interrupted run included.
    """

    def __init__(self, progress: Progress, total: float) -> None:
        self.progress, self.total = progress, total
        self.done, self.computed, self.seconds = 0.0, 0.0, 0.0
        self.parts: dict[str, float] = {}

    @contextmanager
    def measure(self) -> Iterator[list[float]]:
        """A block that computes; the list then holds its seconds."""
        start, taken = time.perf_counter(), [0.0]
        yield taken
        taken[0] = time.perf_counter() - start

    def add(self, part: str, cost: float, seconds: float, fresh: bool) -> None:
        """A piece is done; `fresh` if it was computed now, and not read from an earlier run."""
        self.parts[part] = self.parts.get(part, 0.0) + seconds
        self.done += cost
        if fresh:
            self.computed += cost
            self.seconds += seconds
        self.progress("evaluate", min(round(self.done), round(self.total) - 1), round(self.total), f"{part}{self._left()}")

    def finish(self) -> None:
        self.progress("evaluate", round(self.total), round(self.total), "report")

    def _left(self) -> str:
        if not self.computed:
            return ""
        left = max(0.0, self.total - self.done) * self.seconds / self.computed
        return f", about {left / 60:.0f} min left" if left >= 90 else f", about {left:.0f} s left"

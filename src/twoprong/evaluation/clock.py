"""Where the time of a run goes, and how much of it is left."""

from collections.abc import Iterable
from typing import NamedTuple

from twoprong.progress import Progress

WHOLE = 1000  # steps of the bar, which moves with the time
# How far off the seconds of work are expected to be: an attack that has run on another batch, one that has run with other
# settings, and one of which only a rough number of passes is known.
SURE, ALIKE, GUESSED = 1.25, 2.5, 5.0
VAGUE = 10.0  # a range this wide helps nobody


class Work(NamedTuple):
    """Work that is planned. Groups of one `kind` take about the same time for a unit of `cost`."""

    group: str
    kind: str
    cost: float


class Pace:
    """Seconds per unit of cost. `memory` is what the earlier ones weigh: less than 1 where the first pieces take longest."""

    def __init__(self, memory: float) -> None:
        self.memory, self.cost, self.seconds = memory, 0.0, 0.0

    def add(self, cost: float, seconds: float) -> None:
        self.cost, self.seconds = self.memory * self.cost + cost, self.memory * self.seconds + seconds

    @property
    def rate(self) -> float:
        return self.seconds / self.cost


class Clock:
    """Progress over a whole run. The time left is told per group from what it, its kind, or else everything has taken.

    `parts` are seconds of computing by part, those of an earlier, interrupted run included.
    """

    def __init__(self, progress: Progress, planned: Iterable[Work]) -> None:
        self.progress = progress
        self.waiting: dict[str, float] = {}
        self.kinds: dict[str, str] = {}
        for work in planned:
            self.expect(work)
        self.paces: dict[tuple[str, str], Pace] = {}
        self.parts: dict[str, float] = {}
        self.shown = 0

    def add(self, group: str, cost: float, seconds: float, part: str | None = None) -> None:
        """A piece of a group is done; its seconds are booked on `part`, which is the group unless said."""
        part = part or group
        self.parts[part] = self.parts.get(part, 0.0) + seconds
        kind = self.kinds.setdefault(group, group)
        self.waiting[group] = max(0.0, self.waiting.get(group, 0.0) - cost)
        for key in (("group", group), ("kind", kind), ("all", "")):
            self.paces.setdefault(key, Pace(0.5 if key[0] == "group" else 1.0)).add(cost, seconds)
        low, high = self.left()
        spent, middle = sum(self.parts.values()), (low * high) ** 0.5
        share = spent / (spent + middle) if spent else 0.0
        self.shown = max(self.shown, min(WHOLE - 1, round(WHOLE * share)))  # a bar does not go back
        self.progress("evaluate", self.shown, WHOLE, f"{part}{_told(low, high)}")

    def expect(self, work: Work) -> None:
        """All that is left of a group, whatever was thought before."""
        self.waiting[work.group], self.kinds[work.group] = work.cost, work.kind

    def finish(self) -> None:
        self.progress("evaluate", WHOLE, WHOLE, "report")

    def left(self) -> tuple[float, float]:
        """The least and the most seconds that are left."""
        low = high = 0.0
        for group, cost in self.waiting.items():
            paces = (("group", group), SURE), (("kind", self.kinds[group]), ALIKE), (("all", ""), GUESSED)
            rate, factor = next(((self.paces[key].rate, factor) for key, factor in paces if key in self.paces), (0.0, 1.0))
            low, high = low + cost * rate / factor, high + cost * rate * factor
        return low, high


def _told(low: float, high: float) -> str:
    """A range, or one number where its ends are near, or nothing where it says nothing."""
    if high > VAGUE * low or not high:
        return ""
    unit, size = ("min", 60) if high >= 90 else ("s", 1)
    if high < 2 * low:
        return f", about {(low * high) ** 0.5 / size:.0f} {unit} left"
    return f", {low / size:.0f} to {high / size:.0f} {unit} left" if low > size else f", up to {high / size:.0f} {unit} left"

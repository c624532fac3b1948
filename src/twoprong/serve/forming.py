"""Which images share a batch, and when it closes: pure rules over a clock that is given, without tasks or sleeping.

A batch is the unit of a statistical test, so it matters who is in it:
- A key with more than `max_per_key` images waiting gets a batch of its own; one that is `apart` always does. A key that just
  had one, or whose images come so fast that it will have as many before the deadline, is waited for: it shares only if they
  do not come after all.
- The other keys share a batch, none with more than `max_per_key` images.

A batch closes when it is full, when its oldest image has waited for `deadline`, or earlier, when nobody else is expected:
once the silence since the last image is longer than the time left, fewer than one image will come by the present rate. So
fast traffic fills batches and slow traffic does not wait in vain; the oldest of too few images always waits to the end.

Who shares with whom is looked at anew only where a batch could close: not before `_due`, and not for every image that comes.
"""

from collections.abc import Container, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from twoprong.serve.logs import REQUEST_ID
from twoprong.serve.settings import BatchSettings

REMEMBERED = 4096  # keys without a waiting image that are remembered
SHARED = ""  # stands for all keys that share; keys are not empty


@dataclass(eq=False, slots=True)
class Item:
    """One image that waits for an answer. Images of one key with the same digest are copies of each other."""

    number: int
    key: str
    payload: Any
    digest: Hashable
    nbytes: int = 0
    future: Any = None
    request: str = field(default_factory=REQUEST_ID.get)


@dataclass(eq=False, slots=True)
class Entry:
    """One image of a batch: an item and its copies, which get the same answer and count once."""

    since: float
    items: list[Item] = field(default_factory=list)

    @property
    def number(self) -> int:
        return self.items[0].number

    @property
    def key(self) -> str:
        return self.items[0].key

    @property
    def payload(self) -> Any:
        return self.items[0].payload

    @property
    def digest(self) -> Hashable:
        return self.items[0].digest

    @property
    def awaited(self) -> bool:
        """Whether a client is still there for it."""
        return any(item.future is None or not item.future.done() for item in self.items)


def requests_of(batch: Iterable[Entry]) -> list[str]:
    """The ids of the requests that a batch is from."""
    return sorted({item.request for entry in batch for item in entry.items} - {""})


class Forming:
    """The images that wait. Every call is given the time."""

    def __init__(self, settings: BatchSettings, apart: Container[str] = ()) -> None:
        self.settings, self._apart = settings, apart
        self._waiting: dict[str, dict[Hashable, Entry]] = {}  # by key, then by digest; the oldest first
        self._last: dict[str, float] = {}  # when the last image of a key came
        self._alone: dict[str, float] = {}  # when a key last had a batch of its own
        self._served: dict[str, float] = {}  # when a group last had a batch
        self._due = -inf  # no batch closes before; what follows is as it was when that was found
        self._room = 0  # images until the shared batch is full
        self._since = inf  # of the oldest image

    def __len__(self) -> int:
        """How many images wait; copies count."""
        return sum(len(entry.items) for entry in self._entries(self._waiting))

    def add(self, item: Item, now: float) -> None:
        entries = self._waiting.setdefault(item.key, {})
        before = self._batch(item.key, now) if entries else SHARED
        self._last[item.key] = now
        if item.digest not in entries:
            entries[item.digest] = Entry(now)
            self._room -= 1
        entries[item.digest].items.append(item)
        self._since = min(self._since, now)
        full = self._room <= 0 or len(entries) >= self.settings.max_batch
        moved = before != self._batch(item.key, now)
        self._due = -inf if full or moved else min(self._due, (self._since + self.settings.deadline + now) / 2)
        if len(self._last) > REMEMBERED + len(self._waiting):
            for memory in (self._last, self._alone, self._served):
                for key in [key for key in memory if key not in self._waiting and key != SHARED]:
                    del memory[key]

    def remove(self, item: Item) -> bool:
        """Drop an item; False if it does not wait (any more)."""
        entry = self._waiting.get(item.key, {}).get(item.digest)
        if entry is None or item not in entry.items:
            return False
        entry.items.remove(item)
        self._due = -inf
        if not entry.items:
            self._drop(item)
        return True

    def take(self, now: float) -> list[Entry]:
        """The batch that closes now, or nothing. Of several, that of the group that was served longest ago comes first."""
        if now < self._due:
            return []
        groups = self._groups(now)
        ready = [name for name, keys in groups.items() if self._closes(keys) <= now]
        if not ready:
            self._plan(groups, now)
            return []
        name = min(ready, key=lambda name: (self._served.get(name, -inf), self._oldest(groups[name])))
        batch = sorted(self._entries(groups[name]), key=lambda entry: entry.since)[: self.settings.max_batch]
        for entry in batch:
            self._drop(entry.items[0])
        self._served[name] = now
        if name != SHARED:
            self._alone[name] = now
        return batch

    def wake(self, now: float) -> float:
        """When `take` should be asked again if nothing happens before; infinity if nothing waits."""
        if self._due <= now:
            self._plan(self._groups(now), now)
        return self._due

    def oldest(self) -> float:
        """Since when the oldest image has been waiting; infinity if none is."""
        return self._oldest(self._waiting)

    def _plan(self, groups: dict[str, list[str]], now: float) -> None:
        """Find out when to look again. A new image that leaves its key where it is can close a batch earlier only by filling
        it, or as the last before a silence: not before half of the time is over that the oldest image still has."""
        closing = [self._closes(keys) for keys in groups.values()]
        fast = [key for key in self._waiting if self._batch(key, now) is None]
        joining = [time for key in fast for time in (self._closes([key]), self._slow(key)) if time > now]
        self._due, self._since = min(closing + joining, default=inf), self.oldest()
        self._room = self.settings.max_batch - sum(len(self._waiting[key]) for key in groups.get(SHARED, ()))

    def _groups(self, now: float) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        fast: list[str] = []
        for key in self._waiting:
            batch = self._batch(key, now)
            (fast if batch is None else groups.setdefault(batch, [])).append(key)
        shared = groups.get(SHARED, [])
        few = sum(len(self._waiting[key]) for key in shared) < self.settings.least
        if shared and few and self._closes(shared) <= now:
            shared += fast  # better a batch that can be tested than one of its own
        return groups

    def _batch(self, key: str, now: float) -> str | None:
        """Whose batch a key's images wait for: their own, or that of all who share; None while they may fill their own."""
        if len(self._waiting[key]) > self.settings.max_per_key or key in self._apart:
            return key
        more, took = len(self._waiting[key]) - 1, self._last[key] - self._oldest([key])
        soon = more > 0 and more * self.settings.deadline > self.settings.max_per_key * took
        return None if (soon or now < self._slow(key)) and self._closes([key]) > now else SHARED

    def _slow(self, key: str) -> float:
        """When a key that had a batch of its own is no longer expected to fill another one."""
        return self._alone.get(key, -inf) + 2 * self.settings.deadline

    def _closes(self, keys: Iterable[str]) -> float:
        """When a batch of these keys' images closes; now or before if it is full."""
        keys = list(keys)
        count = sum(len(self._waiting[key]) for key in keys)
        if count >= self.settings.max_batch:
            return -inf
        end = self._oldest(keys) + self.settings.deadline
        silence = (end + max(self._last[key] for key in keys)) / 2
        return end if count < self.settings.least else min(end, silence)

    def _oldest(self, keys: Iterable[str]) -> float:
        return min((next(iter(self._waiting[key].values())).since for key in keys), default=inf)

    def _entries(self, keys: Iterable[str]) -> Iterator[Entry]:
        return (entry for key in keys for entry in self._waiting[key].values())

    def _drop(self, item: Item) -> None:
        del self._waiting[item.key][item.digest]
        if not self._waiting[item.key]:
            del self._waiting[item.key]

"""What is remembered of each key: whether too many of its images look attacked by themselves, one batch after the other.

A few attacked images in each of many shared batches are too few for the batch test. But every image has a score of its own
(`detect/blame.py`), and a clean one reaches its limit with a known probability, the false-alarm rate a. So a key's images
are added up: log(b / a) for one that reaches the limit, log((1 - b) / (1 - a)) for one that does not, never below zero. That
is the CUSUM of Page (1954) for the rate b = 5 a against a. A key whose sum reaches `LIMIT` is watched until it is back at
zero: its images take the flagged route, and it shares no batch. By Lorden's bound a clean key is watched after e^LIMIT
images or more on average.

That supposes independent images. One that is sent again says nothing new of its key, however often it comes: of each key,
the digests of the last `REPEATS` images are remembered while its sum is above zero, and those images are not added again.
So each image counts at most once on the way from zero to `LIMIT`, or back.
"""

from collections.abc import Hashable, Iterable
from math import log

from twoprong.serve.settings import ANONYMOUS

LIMIT = log(10_000)
TIMES = 5  # how many times more often than clean images those of an attacker look attacked, at least
REMEMBERED = 4096  # keys
REPEATS = 300  # images of each


class Memory:
    """The sums of all keys. Those who come without a key are nobody in particular and are not watched."""

    def __init__(self, false_alarm_rate: float) -> None:
        attacked = min(0.5, TIMES * false_alarm_rate)
        self._up = log(attacked / false_alarm_rate)
        self._down = log((1 - attacked) / (1 - false_alarm_rate))
        self._sums: dict[str, float] = {}
        self._images: dict[str, dict[Hashable, None]] = {}  # of the keys that have a sum, the last one heard of last
        self.watched: set[str] = set()

    def heard(self, keys: Iterable[str], images: Iterable[Hashable], suspicious: Iterable[bool]) -> None:
        """Images of some keys, as digests, and whether each looks attacked by itself."""
        for key, image, looks in zip(keys, images, suspicious, strict=True):
            if key == ANONYMOUS:
                continue
            before, known = self._sums.pop(key, 0.0), self._images.setdefault(key, {})
            step = 0.0 if image in known else self._up if looks else self._down
            known.pop(image, None)
            known[image] = None
            if len(known) > REPEATS:
                del known[next(iter(known))]
            value = min(max(before + step, 0.0), 2 * LIMIT)
            if value >= LIMIT:
                self.watched.add(key)
            if value > 0:
                self._sums[key] = value  # the last one heard of is the last to be forgotten
            else:
                self.watched.discard(key)
                del self._images[key]
        if (more := len(self._sums) - REMEMBERED) > 0:
            for key in [key for key in self._sums if key not in self.watched][:more]:
                del self._sums[key], self._images[key]

"""API keys: only their hashes are known here, and each may send so many images a second."""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from math import ceil

from twoprong.serve.problems import Problem
from twoprong.serve.settings import ANONYMOUS, KeySettings


class Bucket:
    """A token bucket: `rate` images a second, `burst` at once."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self.rate, self.burst, self._clock = rate, burst, clock
        self._left, self._then = float(burst), clock()

    def take(self, images: int, taken: int = 0) -> None:
        """Take what is missing where some were `taken` before. Raises Problem 429 with the time after which there is room,
        413 where there never will be."""
        if images > self.burst:
            raise Problem(413, f"expected at most {self.burst} images at once for this key, got {images}")
        now = self._clock()
        self._left = min(self.burst, self._left + (now - self._then) * self.rate)
        self._then = now
        if images - taken > self._left:
            raise Problem(429, "too many images for this key; slow down", max(1, ceil((images - self._left) / self.rate)))
        self._left -= images - taken


class Keys:
    """Who a request is from."""

    def __init__(self, known: Mapping[str, KeySettings], clock: Callable[[], float] = time.monotonic) -> None:
        self._hashes = {name: bytes.fromhex(key.sha256) for name, key in known.items()}
        self._buckets = {name: Bucket(key.rate, key.burst, clock) for name, key in known.items()}

    def name(self, headers: Mapping[str, str]) -> str:
        """The name of the key in `Authorization: Bearer KEY` or `X-API-Key: KEY`. Raises Problem 401 without, 403 with a
        wrong one. All hashes are compared, each in constant time."""
        if not self._hashes:
            return ANONYMOUS
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip(" \t") if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not given:
            raise Problem(401, "expected an API key: Authorization: Bearer KEY, or X-API-Key: KEY")
        hashed = hashlib.sha256(given.encode("latin-1")).digest()  # the bytes as they came: headers are read as latin-1
        found = [name for name, known in self._hashes.items() if hmac.compare_digest(known, hashed)]
        if not found:
            raise Problem(403, "this API key is not known")
        return found[0]

    def spend(self, name: str, images: int, spent: int = 0) -> None:
        """Count images against the key's rate, without those `spent` before. Raises Problem 429 or 413."""
        if name in self._buckets:
            self._buckets[name].take(images, spent)

"""Whether the service's event loop is alive and its queue moves. Other threads may ask."""

import asyncio
import time

from twoprong.serve.batcher import Batcher

INTERVAL = 0.25


class Watchdog:
    """The loop beats while it runs and nothing in the queue is overdue; who has not seen a beat for `limit` is not ready."""

    def __init__(self, batcher: Batcher, limit: float = 3.0) -> None:
        self._batcher, self.limit = batcher, limit
        self._last = time.monotonic()

    @property
    def alive(self) -> bool:
        return time.monotonic() - self._last < self.limit

    async def beat(self) -> None:
        """Runs for ever."""
        while True:
            if self._batcher.overdue(asyncio.get_running_loop().time()) <= self.limit:
                self._last = time.monotonic()
            await asyncio.sleep(INTERVAL)

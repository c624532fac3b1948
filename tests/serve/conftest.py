"""What the tests of the service share: an event loop whose time is made up."""

import asyncio
import selectors

import pytest


class MadeUpTime(selectors.DefaultSelector):
    """Nothing sleeps, and a program that waits for ever is an error."""

    now = 1000.0

    def select(self, timeout=None):
        if timeout is None:
            raise RuntimeError("everything waits, nothing will happen")
        self.now += max(timeout, 0)
        return super().select(0)


@pytest.fixture(scope="session")
def run():
    """Gives a coroutine's result. In its loop `loop.time()` jumps from timer to timer."""

    def run_in_made_up_time(coroutine):
        selector = MadeUpTime()
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now
        try:
            return loop.run_until_complete(coroutine)
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.close()

    return run_in_made_up_time

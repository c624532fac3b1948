"""What the tests of the service share: an event loop whose time is made up, and a service that says what it was sent."""

import asyncio
import selectors
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from twoprong.serve.app import make_app
from twoprong.serve.batcher import Batcher
from twoprong.serve.metrics import Metrics
from twoprong.serve.run import _server, bound_socket
from twoprong.serve.service import Service
from twoprong.serve.settings import BatchSettings, ServeSettings
from twoprong.serve.watchdog import Watchdog
from twoprong.serve.worker import BatchFacts, Model, WorkerSettings


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


class Echo:
    """In place of a worker: the "probabilities" of an image are its first pixels, so that an answer says whose it is."""

    ready, restarts = True, 0
    settings = WorkerSettings("echo")

    async def __call__(self, batch, watched=()):
        await asyncio.sleep(0.002)
        none, keys = (False,) * len(batch), tuple(entry.key for entry in batch)
        facts = BatchFacts(len(batch), keys, none, none, (), False, True, 0.0, 1.0, 1.0)
        return {entry.number: _first(entry.payload) for entry in batch}, facts


def _first(image):
    return image.ravel()[:10] / np.float32(255 if image.dtype == np.uint8 else 1)


@pytest.fixture(scope="session")
def echoing():
    """A service over `Echo` behind a real HTTP server in a thread: gives its address and itself."""

    @contextmanager
    def start(settings=None, batcher=Batcher, samples=()):
        settings = settings or ServeSettings(batch=BatchSettings(deadline=0.02))
        model = Model("echo", (1, 8, 8), (2, 120), None, 0.05, samples)
        service = Service(settings, Echo(), model, Metrics())
        service.batcher = batcher(service._judge, service.batcher.settings)
        service.watchdog = Watchdog(service.batcher)
        server, socket = _server(make_app(service, "test")), bound_socket("127.0.0.1", 0)
        socket.listen()

        async def main():
            beat = asyncio.create_task(service.watchdog.beat())
            await server.serve([socket])
            beat.cancel()

        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        try:
            yield socket.getsockname(), service
        finally:
            server.should_exit = True
            thread.join()
            socket.close()
            service.decoders.shutdown()
            service.reviewer.shutdown()

    return start


@pytest.fixture(scope="session")
def bundle(defense, tmp_path_factory):
    path = tmp_path_factory.mktemp("serve") / "digits"
    defense.save(path)
    return path

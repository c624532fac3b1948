"""The service without HTTP, over a worker that is made up."""

import asyncio
import threading

import numpy as np

from twoprong.serve.images import digest
from twoprong.serve.metrics import Metrics
from twoprong.serve.service import REVIEWS, Service
from twoprong.serve.settings import BatchSettings, ReviewSettings, ServeSettings
from twoprong.serve.worker import BatchFacts, Model, WorkerSettings


class Away:
    """Comes back after three seconds, and then judges those whose clients are still there."""

    ready, restarts, settings = True, 0, WorkerSettings("made up")

    def __init__(self):
        self.judged = []

    async def __call__(self, batch, watched=()):
        await asyncio.sleep(3)
        batch = [entry for entry in batch if entry.awaited]
        self.judged.append(len(batch))
        return await Suspicious()(batch) if batch else ({}, None)


class Suspicious:
    """Finds that every image looks attacked by itself."""

    ready, restarts, settings = True, 0, WorkerSettings("made up")

    async def __call__(self, batch, watched=()):
        none, all_, keys = (False,) * len(batch), (True,) * len(batch), tuple(entry.key for entry in batch)
        facts = BatchFacts(len(batch), keys, none, all_, (), False, True, 0.0, 1.0, 1.0)
        return {entry.number: "answer" for entry in batch}, facts


class Flagging:
    """Flags every batch, to be kept for review."""

    ready, restarts, settings = True, 0, WorkerSettings("made up")

    async def __call__(self, batch, watched=()):
        all_, keys = (True,) * len(batch), tuple(entry.key for entry in batch)
        images = [entry.payload for entry in batch]
        facts = BatchFacts(len(batch), keys, all_, all_, (), True, True, 1.0, 0.5, 0.0, images, (0,), np.stack(images))
        return {entry.number: "answer" for entry in batch}, facts


def served(worker, **settings):
    given = ServeSettings(batch=BatchSettings(deadline=0.02), **settings)
    return Service(given, worker, Model("made up", (1, 8, 8), (1, 120), None, 0.05), Metrics())


async def classify(service, number, key="a"):
    image = np.full((1, 8, 8), number, np.uint8)
    with service.batcher.reserve(key, image.nbytes) as slots:
        return await slots.submit(image, digest(image))


def test_a_client_who_polls_with_one_picture_is_not_watched_and_one_with_many_is(run):
    async def main():
        service = served(Suspicious())
        for _ in range(50):
            assert await classify(service, 0) == "answer"
        assert service.memory.watched == set()
        await asyncio.gather(*[classify(service, number) for number in range(10)])
        assert service.memory.watched == {"a"}

    run(main())


def test_a_batch_some_or_all_of_whose_clients_left_before_it_was_judged_has_not_failed(run):
    async def main():
        worker = Away()
        service = served(worker)
        for staying in (0, 1):
            clients = [asyncio.create_task(classify(service, number)) for number in range(3)]
            await asyncio.sleep(2)
            for client in clients[staying:]:
                client.cancel()
            found = await asyncio.gather(*clients, return_exceptions=True)
            assert found[:staying] == ["answer"] * staying
            await asyncio.sleep(2)
            assert service.batcher.pending == service.batcher.pending_bytes == 0
        assert worker.judged == [0, 1]
        metrics = service.metrics.text().decode()
        assert "twoprong_batches_failed_total 0.0" in metrics
        assert "twoprong_batch_size_count 1.0" in metrics

    run(main())


def test_a_disk_that_is_slow_holds_up_no_request_and_few_batches_wait_for_it(tmp_path):
    """In real time: there are threads."""
    go_on = threading.Event()

    async def main():
        service = served(Flagging(), review=ReviewSettings(folder=str(tmp_path)))
        keep = service.review.keep
        service.review.keep = lambda facts: go_on.wait(30) and keep(facts)
        for number in range(REVIEWS + 3):
            assert await classify(service, number) == "answer"
        loop = asyncio.get_running_loop()
        assert await asyncio.wait_for(loop.run_in_executor(service.decoders, lambda: "decoded"), 10) == "decoded"
        assert "twoprong_reviews_skipped_total 3.0" in service.metrics.text().decode()
        go_on.set()
        await loop.run_in_executor(service.reviewer, int)  # it comes after them
        assert len(service.review.newest(100)) == REVIEWS
        await classify(service, 99)
        await loop.run_in_executor(service.reviewer, int)
        assert len(service.review.newest(100)) == REVIEWS + 1
        service.reviewer.shutdown()

    try:
        asyncio.run(main())
    finally:
        go_on.set()

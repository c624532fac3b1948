"""The service without HTTP, over a worker that is made up."""

import asyncio

import numpy as np

from twoprong.serve.images import digest
from twoprong.serve.metrics import Metrics
from twoprong.serve.service import Service
from twoprong.serve.settings import BatchSettings, ServeSettings
from twoprong.serve.worker import BatchFacts, Model, WorkerSettings


class Suspicious:
    """Finds that every image looks attacked by itself."""

    ready, restarts, settings = True, 0, WorkerSettings("made up")

    async def __call__(self, batch, watched=()):
        none, all_, keys = (False,) * len(batch), (True,) * len(batch), tuple(entry.key for entry in batch)
        facts = BatchFacts(len(batch), keys, none, all_, (), False, True, 0.0, 1.0, 1.0)
        return {entry.number: "answer" for entry in batch}, facts


def served(worker, **settings):
    given = ServeSettings(batch=BatchSettings(deadline=0.1), **settings)
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

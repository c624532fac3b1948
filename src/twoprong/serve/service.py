"""The service without HTTP: a worker or more, one queue, its keys and its numbers; from pixels to probabilities."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from math import prod

import numpy as np

from twoprong.errors import ConfigError
from twoprong.serve.batcher import Batcher
from twoprong.serve.forming import Entry, requests_of
from twoprong.serve.keys import Keys
from twoprong.serve.memory import Memory
from twoprong.serve.metrics import Metrics, route_of
from twoprong.serve.review import Review
from twoprong.serve.settings import BatchSettings, LimitSettings, ServeSettings
from twoprong.serve.watchdog import Watchdog
from twoprong.serve.worker import BatchFacts, Judges, Model, WorkerSettings

log = logging.getLogger("twoprong")

REVIEWS = 4  # flagged batches that wait for their pictures to be written; others are not kept
DECODERS = 2  # threads that read pictures and tensors, so that a large one does not hold up the others


class Service:
    """What the public and the admin application share. Made by `running`. The worker gets so many `batches` at a time."""

    def __init__(self, settings: ServeSettings, worker: Judges, model: Model, metrics: Metrics, batches: int = 1) -> None:
        settings = settings.model_copy(update={"limits": _limited(settings, prod(model.shape))})
        self.settings, self.worker, self.model, self.metrics = settings, worker, model, metrics
        self.keys = Keys(settings.keys)
        self.memory = Memory(model.false_alarm_rate)
        fitted = _fitted(settings.batch, model.sizes)
        self._numbers = count(1)  # of batches
        self.batcher = Batcher(self._judge, fitted, batches, apart=self.memory.watched)
        self.watchdog = Watchdog(self.batcher)
        self.decoders = ThreadPoolExecutor(DECODERS, "decoder")
        self.draining = False
        self.reviewer, self._reviews = ThreadPoolExecutor(1, "review"), 0  # of its own: requests are not to wait for it
        self.review = Review(settings.review.folder, settings.review.max_bytes) if settings.review.folder else None
        metrics.pending.set_function(lambda: self.batcher.pending)
        metrics.pending_bytes.set_function(lambda: self.batcher.pending_bytes)
        metrics.restarts.set_function(lambda: worker.restarts)
        metrics.ready.set_function(lambda: self.ready)
        metrics.watched.set_function(lambda: len(self.memory.watched))

    @property
    def ready(self) -> bool:
        return self.worker.ready and self.watchdog.alive and not self.draining

    async def drain(self) -> bool:
        """Answer what was accepted and nothing more; False if that took longer than the grace time."""
        self.draining = True
        return await self.batcher.drain(self.settings.limits.grace_seconds)

    async def _judge(self, batch: Sequence[Entry]) -> Mapping[int, np.ndarray]:
        loop = asyncio.get_running_loop()
        start, number = loop.time(), next(self._numbers)
        for entry in batch:
            self.metrics.queue.observe(start - entry.since)
        try:
            answers, facts = await self.worker(batch, self.memory.watched)
        except BaseException:
            self.metrics.failed.inc()
            raise
        if facts is None:
            return answers
        self.metrics.batch_seconds.observe(loop.time() - start)
        self.metrics.heard(facts)
        judged = [entry.digest for entry in batch if entry.number in answers]
        self.memory.heard(facts.keys, judged, facts.suspicious)
        if facts.tested and facts.adversarial:
            names = ("size", "statistic", "threshold", "p_value", "blamed")
            said = {"batch": number, **{name: getattr(facts, name) for name in names}, "requests": requests_of(batch)}
            log.warning("alarm", extra={"fields": said | {"route": route_of(facts)[0]}})
        if self.review is not None and facts.shown:
            self._keep(self.review, facts)
        return answers

    def _keep(self, review: Review, facts: BatchFacts) -> None:
        """Have a batch written, if not too many are waiting for that."""
        if self._reviews >= REVIEWS:
            self.metrics.reviews_skipped.inc()
            return
        self._reviews += 1
        asyncio.get_running_loop().run_in_executor(self.reviewer, review.keep, facts).add_done_callback(self._kept)

    def _kept(self, _: object) -> None:
        self._reviews -= 1


def worker_settings(
    bundle: str, device: str, settings: ServeSettings, allow: Sequence[str] = (), demo: bool = False
) -> WorkerSettings:
    """What a worker has to know of the service's settings."""
    review = bool(settings.review.folder)
    return WorkerSettings(bundle, device, settings.on_small_batch, settings.threads, tuple(allow), review, demo)


@asynccontextmanager
async def running(settings: ServeSettings, worker: Judges, batches: int = 1) -> AsyncIterator[Service]:
    """A service whose worker is up. Raises StateError if the bundle cannot be loaded, ConfigError if settings do not fit."""
    try:
        service = Service(settings, worker, await worker.start(), Metrics(), batches)
        worker.settings = replace(worker.settings, demo=False)  # the samples are attacked once, not by each new worker
        gc.collect()
        gc.freeze()  # a full collection over all that was imported takes 0.2 s and holds up the event loop
        beat = asyncio.create_task(service.watchdog.beat())
        try:
            yield service
        finally:
            beat.cancel()
            gc.unfreeze()
            for threads in (service.decoders, service.reviewer):
                threads.shutdown(wait=False, cancel_futures=True)
    finally:
        await worker.stop()


def _fitted(settings: BatchSettings, sizes: tuple[int, int]) -> BatchSettings:
    """The settings inside what the bundle is calibrated for."""
    smallest, largest = sizes
    if settings.max_batch > largest or settings.max_batch < smallest:
        if "max_batch" in settings.model_fields_set:
            raise ConfigError(
                f"batch.max_batch: expected {smallest} to {largest}, as the bundle can test, got {settings.max_batch}"
            )
        settings = settings.model_copy(update={"max_batch": largest})
    return settings.model_copy(update={"least": max(settings.least, smallest)})


def _limited(settings: ServeSettings, image: int) -> LimitSettings:
    """The limits of a request inside what the queue can hold of one client, where an image has so many bytes."""
    limits, share, lowered = settings.limits, "_per_key" if settings.keys else "", {}
    for name, room, beside in (("max_images", "max_items", 0), ("max_upload", "max_bytes", image)):
        most = getattr(settings.batch, room + share) - beside
        if getattr(limits, name) <= most:
            continue
        if most < 1:
            raise ConfigError(
                f"batch.{room}{share}: expected more than {beside}, the bytes of one image, got {most + beside}"
            )
        if name in limits.model_fields_set:
            fits = f"{most}, as batch.{room}{share} = {most + beside} can hold" + " beside an image" * bool(beside)
            raise ConfigError(f"limits.{name}: expected at most {fits}, got {getattr(limits, name)}")
        lowered[name] = most
    return limits.model_copy(update=lowered)

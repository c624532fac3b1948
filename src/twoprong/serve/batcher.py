"""A queue from single images to batches and back: asyncio, no web framework, no model.

    with batcher.reserve("tenant", nbytes) as slots:   # before anything is decoded; raises OverloadError, DrainingError
        answer = await slots.submit(decode(body))      # raises BatchError; may be cancelled at any time

What is reserved is bounded, what was accepted is answered exactly once, and a failure stays in its batch. Answers go by
number, never by position: a judge that loses, invents or repeats a number fails its batch.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Hashable, Mapping, Sequence
from itertools import count, islice
from math import ceil, inf
from types import TracebackType
from typing import Any

from twoprong.errors import TwoprongError
from twoprong.serve.forming import Entry, Forming, Item, requests_of
from twoprong.serve.settings import ANONYMOUS, BatchSettings

log = logging.getLogger("twoprong")

TOGETHER = 10  # images answered before the event loop gets a turn, so that refusals need not wait

Judge = Callable[[Sequence[Entry]], Awaitable[Mapping[int, Any]]]  # one answer for the number of each entry that is awaited


class UnavailableError(TwoprongError):
    """Nothing is wrong with the request; it may be tried again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OverloadError(UnavailableError):
    """There is no room for more images."""


class DrainingError(UnavailableError):
    """The service is going down and accepts nothing new."""


class BatchError(UnavailableError):
    """The batch that the image was in could not be judged."""


class Batcher:
    """Forms batches by the rules of `forming.py` and hands `workers` of them at a time to `judge`.

    Keys that are `apart` share none.
    """

    def __init__(self, judge: Judge, settings: BatchSettings, workers: int = 1, apart: Container[str] = ()) -> None:
        self.settings = settings
        self._judge, self._free = judge, workers
        self._forming, self._numbers = Forming(settings, apart), count()
        self._items: Counter[str] = Counter()  # accepted and not answered, by key
        self._bytes: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._running: dict[asyncio.Task[None], float] = {}  # when each batch was closed
        self._draining = self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._seconds = 0.1  # what a batch takes, roughly; for Retry-After

    @property
    def pending(self) -> int:
        """Images that were accepted and are not answered yet; those that are being decoded count."""
        return self._items.total()

    @property
    def pending_bytes(self) -> int:
        return self._bytes.total()

    def overdue(self, now: float) -> float:
        """For how many seconds the oldest image or batch should have been done; 0 where nothing is late."""
        late_image = now - self._forming.oldest() - self.settings.deadline if self._free else 0.0
        late_batch = now - min(self._running.values(), default=inf) - self.settings.timeout - self.settings.pace
        return max(late_image, late_batch, 0.0)

    def reserve(self, key: str, nbytes: int, images: int = 1, announced: int = 0) -> "Slots":
        """Room for some images of a key, to be used in a `with` block. Raises OverloadError or DrainingError.

        Bytes that are `announced` have to fit, too, but are held only once `Slots.extend` is called for them.
        """
        if self._draining:
            raise DrainingError("the service is going down; try another one")
        self._check(key, nbytes + announced, images)
        return Slots(self, key, nbytes, images)

    def _check(self, key: str, nbytes: int, images: int) -> None:
        if self.pending + images > self.settings.max_items or self.pending_bytes + nbytes > self.settings.max_bytes:
            raise OverloadError("too many images are waiting; try again later", self._retry_after())
        if key == ANONYMOUS:  # nobody knows how many clients these are
            return
        much = self._bytes[key] + nbytes > self.settings.max_bytes_per_key
        if much or self._items[key] + images > self.settings.max_items_per_key:
            raise OverloadError("too many of your images are waiting; try again later", self._retry_after())

    async def drain(self, grace: float) -> bool:
        """Accept nothing more and wait until all that was accepted is answered; False if that takes longer than `grace`.

        What is left then fails with BatchError: nothing hangs.
        """
        self._draining = True
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            self._closed = True
            await asyncio.sleep(0)  # a task that has not begun would be cancelled before it can answer anybody
            for task in list(self._running):
                task.cancel()
            while batch := self._forming.take(inf):
                self._finish(batch, BatchError("the service is going down"))
            return False
        return True

    def _retry_after(self) -> int:
        return max(1, ceil(self.pending / self.settings.max_batch * self._seconds))

    def _hold(self, key: str, images: int, nbytes: int) -> None:
        """Count images as accepted, or with negative numbers as gone."""
        for held, more in ((self._items, images), (self._bytes, nbytes)):
            held[key] += more
            if not held[key]:
                del held[key]
        (self._idle.clear if self._items else self._idle.set)()

    async def _submit(self, key: str, payload: Any, digest: Hashable, nbytes: int) -> Any:
        if self._closed:
            self._hold(key, -1, -nbytes)
            raise BatchError("the service is going down")
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        item = Item(number, key, payload, (number,) if digest is None else digest, nbytes, loop.create_future())
        self._forming.add(item, loop.time())
        self._pump()
        try:
            return await item.future
        except asyncio.CancelledError:
            if self._forming.remove(item):  # else it is in a batch and is held until that ends
                self._hold(key, -1, -nbytes)
            raise

    def _pump(self) -> None:
        """Close what is to be closed now, and be called again when the next batch closes."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._free and not self._closed and (batch := self._forming.take(loop.time())):
            self._free -= 1
            task = loop.create_task(self._run(batch))
            self._running[task] = loop.time()
            task.add_done_callback(self._running.pop)
        if self._free and (wake := self._forming.wake(loop.time())) < inf:
            self._timer = loop.call_at(wake, self._pump)

    async def _run(self, batch: list[Entry]) -> None:
        """Judge one batch and give every image its answer."""
        loop, entries = asyncio.get_running_loop(), iter(batch)
        start = loop.time()
        outcome: Mapping[int, Any] | BatchError = BatchError("the service is going down")
        try:
            try:
                outcome = await self._outcome(batch)
                if (rest := start + self.settings.pace - loop.time()) > 0:
                    await asyncio.sleep(rest)
            finally:  # not before: the time of the next batch's answers would tell how long this one was judged
                self._free += 1
                self._seconds += 0.2 * (loop.time() - start - self._seconds)
                self._pump()
            while some := list(islice(entries, TOGETHER)):
                self._finish(some, outcome)
                await asyncio.sleep(0)
        finally:
            self._finish(list(entries), outcome)

    async def _outcome(self, batch: list[Entry]) -> Mapping[int, Any] | BatchError:
        """What the judge says of a batch, or that it could not."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                return _complete(await self._judge(batch), batch)
        except Exception as error:
            said = {"size": len(batch), "error": repr(error), "requests": requests_of(batch)}
            log.error("a batch failed", extra={"fields": said})
            outcome = BatchError("the batch could not be judged; try again")
            outcome.__cause__ = error
            return outcome

    def _finish(self, entries: list[Entry], outcome: Mapping[int, Any] | BatchError) -> None:
        for entry in entries:
            for item in entry.items:
                if item.future.done():  # cancelled meanwhile
                    pass
                elif isinstance(outcome, BatchError):
                    item.future.set_exception(outcome)
                else:
                    item.future.set_result(outcome[entry.number])
                self._hold(item.key, -1, -item.nbytes)


def _complete(answers: Mapping[int, Any], batch: Sequence[Entry]) -> Mapping[int, Any]:
    """The answers, if there is exactly one for every entry of the batch; entries whose clients left need none."""
    numbers, awaited = ({entry.number for entry in some} for some in (batch, (entry for entry in batch if entry.awaited)))
    if not awaited <= answers.keys() <= numbers:
        raise ValueError(f"expected answers for {len(batch)} images by number, got {len(answers)} or other numbers")
    return answers


class Slots:
    """Room that is held for some images of one key. What is not submitted is given back at the end of the `with` block."""

    def __init__(self, batcher: Batcher, key: str, nbytes: int, images: int) -> None:
        self._batcher, self._key, self._bytes, self._images = batcher, key, nbytes, images

    def __enter__(self) -> "Slots":
        self._batcher._hold(self._key, self._images, self._bytes)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._batcher._hold(self._key, -self._images, -self._bytes)
        self._images = self._bytes = 0

    def extend(self, images: int, nbytes: int) -> None:
        """Room for more images or bytes, once they have come. Raises OverloadError; a drain waits for them, too."""
        self._batcher._check(self._key, nbytes, images)
        self._batcher._hold(self._key, images, nbytes)
        self._images, self._bytes = self._images + images, self._bytes + nbytes

    def most(self, nbytes: int) -> int:
        """How many images of so many bytes there can ever be room for, beside the bytes that are held."""
        settings = self._batcher.settings
        room = settings.max_bytes if self._key == ANONYMOUS else settings.max_bytes_per_key
        return (room - self._bytes) // nbytes

    async def submit(self, payload: Any, digest: Hashable = None) -> Any:
        """The judge's answer for one image. Images of one key with the same digest count as one and get one answer."""
        if not self._images:
            raise RuntimeError("expected no more images than were reserved")
        share = self._bytes // self._images  # the room goes over to the image, which gives it back when it is answered
        self._images, self._bytes = self._images - 1, self._bytes - share
        return await self._batcher._submit(self._key, payload, digest, share)

    async def submit_all(self, payloads: Sequence[Any], digests: Sequence[Hashable]) -> list[Any]:
        """Several images, possibly in several batches: the answers in order. Where one fails, the others are cancelled."""
        if len(payloads) == 1:
            return [await self.submit(payloads[0], digests[0])]
        try:
            async with asyncio.TaskGroup() as group:
                pairs = zip(payloads, digests, strict=True)
                tasks = [group.create_task(self.submit(payload, digest)) for payload, digest in pairs]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

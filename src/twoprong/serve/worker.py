"""The service's worker: a process (`process.py`) that is asked batch by batch, killed if late, and replaced if it dies."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from twoprong.errors import TwoprongError
from twoprong.serve import wire
from twoprong.serve.forming import Entry
from twoprong.serve.process import ModelProcess

log = logging.getLogger("twoprong")

PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds before a worker is started again; doubled each time that it does not come up


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker loads, and where. `on_small_batch` decides about batches that are too small to test."""

    bundle: str
    device: str = "cpu"
    on_small_batch: str = "denoise"
    threads: int = 0  # of torch; 0 leaves it to torch
    allow: tuple[str, ...] = ()
    review: bool = False  # whether flagged batches come back as the classifier saw them
    demo: bool = False  # whether samples are wanted


@dataclass(frozen=True)
class Model:
    """What a worker says of its bundle."""

    name: str
    shape: tuple[int, int, int]
    sizes: tuple[int, int]
    classes: tuple[str, ...] | None
    false_alarm_rate: float
    samples: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, said: dict[str, Any]) -> "Model":
        names = [name for name in ("shape", "sizes", "classes", "samples") if said[name] is not None]
        return cls(**said | {name: tuple(said[name]) for name in names})


@dataclass(frozen=True)
class BatchFacts:
    """What the service's owner may know of a batch, and no client: the test, the routes and the keys."""

    size: int
    keys: tuple[str, ...]
    flagged: tuple[bool, ...]
    suspicious: tuple[bool, ...]  # whether each looks attacked by itself
    blamed: tuple[str, ...]
    adversarial: bool
    tested: bool
    statistic: float | None
    threshold: float | None
    p_value: float | None
    images: list[np.ndarray] = field(repr=False, default_factory=list)
    shown: tuple[int, ...] = ()  # which of the images are for review, and as bytes what the classifier saw of them
    seen: np.ndarray = field(repr=False, default_factory=lambda: np.zeros(0, np.uint8))


class WorkerError(TwoprongError):
    """The worker process ended in the middle of a batch."""


Answered = tuple[Mapping[int, np.ndarray], BatchFacts | None]


class Judges(Protocol):
    """Whoever does the model's work for a service: one process here, or replicas elsewhere (`replicas.py`)."""

    settings: WorkerSettings
    restarts: int

    @property
    def ready(self) -> bool: ...

    async def start(self) -> Model:
        """Wait for the bundle. Raises StateError if it cannot be loaded."""

    async def stop(self) -> None: ...

    async def __call__(self, batch: Sequence[Entry], watched: Collection[str] = ()) -> Answered:
        """The probabilities for each entry, by its number, and the facts of the batch. Images of `watched` keys take the
        flagged route. Those whose clients left while the model was away are left out; where all did, there are no facts.
        Raises WorkerError where the model went away, TwoprongError where it failed."""


def question(batch: Sequence[Entry], watched: Collection[str]) -> tuple[dict[str, Any], bytes]:
    """A batch as it is sent: head and body."""
    images, keys = [entry.payload for entry in batch], [entry.key for entry in batch]
    head = {"numbers": [entry.number for entry in batch], "keys": keys, "kinds": wire.kinds(images)}
    return head | {"watched": sorted({*keys}.intersection(watched))}, b"".join(image.tobytes() for image in images)


def answer(batch: Sequence[Entry], found: dict[str, Any], body: bytes) -> Answered:
    """What came back for a batch. Raises TwoprongError where it is an error."""
    if "error" in found:
        raise TwoprongError(found["error"])
    images, keys = [entry.payload for entry in batch], tuple(entry.key for entry in batch)
    numbers = found.pop("numbers")
    shown, size = len(found["shown"]), images[0].size
    answers = np.frombuffer(body[: len(body) - shown * size], np.float32).reshape(len(numbers), -1)
    seen = np.frombuffer(body[len(body) - shown * size :], np.uint8).reshape(shown, *images[0].shape)
    facts: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return dict(zip(numbers, answers, strict=True)), BatchFacts(len(batch), keys, images=images, seen=seen, **facts)


class Worker:
    """One process, one batch at a time; and a spare one that has everything but the bundle, for when the first one dies."""

    def __init__(self, settings: WorkerSettings, spare: bool = True) -> None:
        self.settings, self.restarts, self._wants_spare = settings, 0, spare
        self._process: ModelProcess | None = None
        self._spare: ModelProcess | None = None
        self._up = asyncio.Event()
        self._minder: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self._up.is_set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> Model:
        """Start the process and wait for its bundle. Raises StateError with the worker's own words if it cannot load it."""
        try:
            self._process = await ModelProcess.start()
            said = await self._load(self._process)
        except BaseException:
            await self.stop()
            raise
        self._minder = asyncio.create_task(self._mind())
        return Model.of(said)

    async def stop(self) -> None:
        """End the processes and do not start them again."""
        self._up.clear()
        if self._minder is not None:
            self._minder.cancel()
            await asyncio.gather(self._minder, return_exceptions=True)
        for process in (self._process, self._spare):
            if process is not None:
                await process.end()

    async def __call__(self, batch: Sequence[Entry], watched: Collection[str] = ()) -> Answered:
        """As `Judges` promises; a cancelled call kills the worker."""
        await self._up.wait()
        if not (batch := [entry for entry in batch if entry.awaited]):
            return {}, None
        assert self._process is not None
        process, message = self._process, wire.pack(*question(batch, watched))
        try:
            found, body = await process.ask(message)
        except BaseException as error:  # late, dead or out of step: whatever it still says belongs to no batch
            if self._process is process:  # the next batch waits for the next process
                self._up.clear()
            process.kill()
            if isinstance(error, asyncio.IncompleteReadError | ConnectionError):
                raise WorkerError("the worker died while it judged this batch") from error
            raise
        return answer(batch, found, body)

    async def _load(self, process: ModelProcess) -> dict[str, Any]:
        said = await process.load(asdict(self.settings))
        self._up.set()
        return said

    async def _mind(self) -> None:
        """Whenever the process ends, put the spare one in its place, or a new one. Nothing ends this but `stop`: without a
        minder there would never be a worker again."""
        while True:
            try:
                await self._stand_by()
                await self._succeed()
            except Exception:
                log.exception("the worker could not be looked after")
                await asyncio.sleep(PAUSE)

    async def _succeed(self) -> None:
        assert self._process is not None
        code = await self._process.ended()
        self._up.clear()
        self.restarts += 1
        log.error("the worker ended (%s); another one takes its place", code)
        await self._process.end()
        await self._replace()

    async def _replace(self) -> None:
        """Try until there is a process that has loaded the bundle; a spare one may have died, too."""
        assert self._process is not None
        pause = PAUSE
        while True:
            try:
                spare, self._spare = self._spare, None
                self._process = spare or await ModelProcess.start()
                await self._load(self._process)
                return
            except Exception as error:
                log.error("the worker did not come up: %s", error)
                await self._process.end()
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _stand_by(self) -> None:
        """Have a spare process, if there can be one."""
        if self._wants_spare and self._spare is None:
            try:
                self._spare = await ModelProcess.start()
            except Exception as error:  # MemoryError, for one
                log.warning("there is no spare worker: %r", error)

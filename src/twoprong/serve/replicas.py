"""Model replicas on Ray: what each of them does, and the service's end of them, in the place of the worker process."""

import asyncio
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from math import inf
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from twoprong.errors import StateError
from twoprong.serve.forming import Entry
from twoprong.serve.loaded import LoadedModel
from twoprong.serve.process import STARTING
from twoprong.serve.worker import Answered, Model, WorkerError, WorkerSettings, answer, question

AT_ONCE = 2  # batches that a replica is given: one is judged while the next is on its way
QUIET = 2.0  # seconds without an answer after which the replicas are asked whether they are there
PATIENCE = 5.0  # seconds that they have to say so
PAUSE = 0.25

LOST = (RayError, RayServeException)


class ModelReplica:
    """The bundle in a Ray actor. Batches that come at the same time are judged one after the other."""

    def __init__(self, settings: WorkerSettings, timeout: float) -> None:
        self._loaded, self._timeout = LoadedModel(asdict(settings)), timeout
        self._thread = ThreadPoolExecutor(1, "model")  # so that health checks are answered meanwhile
        self._since = inf

    async def about(self) -> dict[str, Any]:
        return self._loaded.about

    async def ping(self) -> None:
        """Answered wherever there is a replica."""

    async def judge(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._judge, head, body)

    async def check_health(self) -> None:
        """Raises StateError where a batch takes too long; Ray then replaces the replica."""
        if time.monotonic() - self._since > self._timeout:
            raise StateError(f"a batch takes longer than {self._timeout:g} s")

    def _judge(self, head: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        self._since = time.monotonic()
        try:
            return self._loaded.answer(head, body)
        finally:
            self._since = inf


class Replicas:
    """All model replicas behind one Ray Serve handle, with the promises of `worker.Judges`.

    A batch whose replica dies fails with WorkerError and is not tried again: it may be what the replica died of. Starting
    another replica is Ray's business. `restarts` counts the batches that were lost.
    """

    def __init__(self, handle: Any, settings: WorkerSettings) -> None:
        self.settings, self.restarts = settings, 0
        self._handle, self._under_way, self._heard = handle, 0, -inf
        self._up = asyncio.Event()
        self._minder: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self._up.is_set()

    async def start(self) -> Model:
        """What the replicas say of their bundle. Raises StateError if none is there in time."""
        try:
            said = await self._asked("about", STARTING)
        except (TimeoutError, *LOST) as error:
            raise StateError(f"no model replica came up: {error or 'none answers'}") from error
        self._minder = asyncio.create_task(self._mind())
        return Model.of(said)

    async def stop(self) -> None:
        self._up.clear()
        if self._minder is not None:
            self._minder.cancel()

    async def __call__(self, batch: Sequence[Entry], watched: Collection[str] = ()) -> Answered:
        """As `Judges` promises. It waits while no replica answers, and where none is free; it may be cancelled."""
        await self._up.wait()
        if not (batch := [entry for entry in batch if entry.awaited]):
            return {}, None
        self._under_way += 1
        try:
            found, body = await self._asked("judge", None, *question(batch, watched))
        except LOST as error:
            self.restarts += 1
            raise WorkerError(f"the model replica of this batch was lost: {type(error).__name__}") from error
        finally:
            self._under_way -= 1
        return answer(batch, found, body)

    async def _asked(self, method: str, seconds: float | None, *given: Any) -> Any:
        response = getattr(self._handle, method).remote(*given)
        try:
            async with asyncio.timeout(seconds):
                said = await response
        except BaseException:
            response.cancel()
            self._up.clear()
            self._heard = -inf
            raise
        self._up.set()
        self._heard = asyncio.get_running_loop().time()
        return said

    async def _mind(self) -> None:
        """While there is no batch that tells, ask whether a replica is there; batches wait for it."""
        while True:
            quiet = not self._under_way and asyncio.get_running_loop().time() - self._heard > QUIET
            if quiet or not self.ready:
                with suppress(TimeoutError, *LOST):
                    await self._asked("ping", PATIENCE)
            await asyncio.sleep(PAUSE)

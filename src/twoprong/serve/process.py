"""One process for the model's work (`child.py` is its other end): started, asked message by message, ended."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from twoprong.errors import StateError
from twoprong.serve import wire

STARTING = 120.0  # seconds that a process may take until its bundle is loaded
BUFFER = 2**20


class Pipe:
    """The way into a process, written by a thread of its own.

    When a batch is sent, the event loop is busy with the answers of the one before. It would write a piece now and then,
    and the process would wait for the rest.
    """

    def __init__(self) -> None:
        self.exit, self._entrance = os.pipe()
        self._thread, self._open = ThreadPoolExecutor(1, "pipe"), True

    async def send(self, message: bytes) -> None:
        """Raises BrokenPipeError where nobody reads any more."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, message)

    def _write(self, message: bytes) -> None:
        rest = memoryview(message)
        while rest:
            rest = rest[os.write(self._entrance, rest) :]

    def close(self) -> None:
        """What is being written comes first: the number of a closed file may soon be another one's."""
        if self._open:
            self._open = False
            self._thread.submit(os.close, self._entrance)
            self._thread.shutdown(wait=False)


class ModelProcess:
    """A Python process that has imported what the model needs, and loads a bundle once it is told which."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: Pipe) -> None:
        self._process, self._pipe = process, pipe

    @classmethod
    async def start(cls) -> "ModelProcess":
        """A process that is on its way. Raises OSError where there can be none."""
        pipe = Pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "twoprong.serve.child",
                stdin=pipe.exit, stdout=asyncio.subprocess.PIPE, start_new_session=True, limit=BUFFER,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(pipe.exit)
        return cls(process, pipe)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What the process says of its bundle. Raises StateError with its own words if it cannot load it."""
        try:
            async with asyncio.timeout(STARTING):
                said, _ = await self.ask(wire.pack(settings))
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            raise StateError("the worker did not start; its own words are above") from error
        if "error" in said:
            raise StateError(said["error"])
        return dict(said)

    async def ask(self, message: bytes) -> tuple[Any, bytes]:
        """The answer to one message. Raises IncompleteReadError or ConnectionError where the process has ended."""
        assert self._process.stdout is not None
        await self._pipe.send(message)
        return await wire.receive(self._process.stdout)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        return await self._process.wait()

    async def end(self) -> None:
        self.kill()
        await self._process.wait()
        self._pipe.close()

"""One process for the model's work (`child.py` is its other end): started, asked message by message, ended."""

import asyncio
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from twoprong.errors import StateError
from twoprong.serve import wire

STARTING = 120.0  # seconds that a process may take until its bundle is loaded
BUFFER = 2**33  # more than any message: asyncio would wait for ever for the end of a process whose pipe it has paused


class Pipe:
    """The way into a process, written by a thread of its own.

    When a batch is sent, the event loop is busy with the answers of the one before. It would write a piece now and then,
    and the process would wait for the rest.
    """

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        self._writer: ThreadPoolExecutor | None = None
        self._open = True

    async def send(self, message: bytes) -> None:
        """Raises BrokenPipeError where nobody reads any more."""
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "pipe")
        await asyncio.get_running_loop().run_in_executor(self._writer, self._write, message)

    def _write(self, message: bytes) -> None:
        rest = memoryview(message)
        while rest:
            rest = rest[os.write(self._write_end, rest) :]

    def close(self) -> None:
        """A pending write ends first: the number of a closed descriptor may be reused at once."""
        if not self._open:
            return
        self._open = False
        if self._writer is None:
            os.close(self._write_end)
            return
        try:
            self._writer.submit(os.close, self._write_end)
            self._writer.shutdown(wait=False)
        except RuntimeError:  # no thread could be started, so nothing is being written
            os.close(self._write_end)


class ModelProcess:
    """A Python process that imports what the model needs, then loads the bundle that it is told to."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: Pipe) -> None:
        self._process, self._pipe, self._over = process, pipe, False

    @classmethod
    async def start(cls) -> "ModelProcess":
        """Start a process; it may still be importing. Raises StateError where there can be none."""
        pipe = Pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "twoprong.serve.child",
                stdin=pipe.read_end, stdout=asyncio.subprocess.PIPE, start_new_session=True, limit=BUFFER,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        except BaseException as error:
            pipe.close()
            if isinstance(error, OSError | RuntimeError):  # no memory, no file, no thread to wait for it
                raise StateError(f"no worker process can be started: {error}") from error
            raise
        finally:
            os.close(pipe.read_end)
        return cls(process, pipe)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        """What the process says about its bundle. Raises StateError with its message if it cannot load it."""
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
        """The process and all that it has started: a child of its own would hold the pipes open."""
        if not self._over:  # else its number may belong to others by now
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        return await self._process.wait()

    async def end(self) -> None:
        """Kill it, wait until it has gone, and close its pipe."""
        self.kill()
        await self._process.wait()
        self._over = True
        self._pipe.close()

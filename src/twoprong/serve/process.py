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
BUFFER = 2**24  # asyncio's own loop waits for ever for a process that has ended with more than twice this unread


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
        """What is being written comes first: the number of a closed file may soon be another one's."""
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
    """A Python process that has imported what the model needs, and loads a bundle once it is told which."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: Pipe) -> None:
        self._process, self._pipe = process, pipe

    @classmethod
    async def start(cls) -> "ModelProcess":
        """Start a process; it may still be importing. Raises OSError where there can be none."""
        pipe = Pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "twoprong.serve.child",
                stdin=pipe.read_end, stdout=asyncio.subprocess.PIPE, start_new_session=True, limit=BUFFER,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(pipe.read_end)
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

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def kill(self) -> None:
        """The process and all that it has started: a child of its own would hold the pipes open."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        return await self._process.wait()

    async def end(self) -> None:
        self.kill()
        await self._process.wait()
        self._pipe.close()

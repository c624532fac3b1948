"""For the tests of the service under load: the command in a process, cheap clients, what processes hold, a planted mistake.

TWOPRONG_SCALE=34 in the environment makes the tests long: 100,000 requests, 20 kills and ends, a minute of overload.
"""

import asyncio
import io
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from PIL import Image

from twoprong.serve.batcher import Batcher

SCALE = int(os.environ.get("TWOPRONG_SCALE", "1"))
PAGE = os.sysconf("SC_PAGE_SIZE")


@contextmanager
def serving(bundle, tmp_path, config, *more):
    """The command in a process of its own: gives it, and where it listens."""
    (tmp_path / "serve.toml").write_text(config)
    command = [sys.executable, "-m", "twoprong", "serve", str(bundle), "--port", "0", "--admin-port", "0", *more]
    command += ["--device", "cpu", "--config", str(tmp_path / "serve.toml"), "--log-format", "json"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield process, json.loads(process.stdout.readline())["listening"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def children(pid):
    """The processes that a process has started, the oldest first."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def worker_of(pid):
    """The process that does a service's work; the younger one is the spare."""
    return children(pid)[0]


def picture(pixels, kind="PNG", **more):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **more)
    return file.getvalue()


def request(body, path="/v1/classify?top_k=10", headers=None):
    """A whole POST request in bytes."""
    lines = {"Host": "a", "Content-Length": str(len(body)), **(headers or {})}
    return (f"POST {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n").encode() + body


class Connection:
    """One client's connection: opened when it is needed."""

    def __init__(self, address):
        self.address, self.writer = address, None

    async def send(self, data):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(*self.address)
        self.writer.write(data)

    async def answer(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].split("\r\n")[0])
        body = await self.reader.readexactly(length)
        if "connection: close" in head:
            self.close()
        return int(head.split(" ", 2)[1]), body

    def close(self):
        if self.writer is not None:
            self.writer.close()
            self.writer = None


@dataclass
class Vitals:
    """What processes hold: megabytes of memory, open files, threads."""

    memory: float
    files: int
    threads: int

    @classmethod
    def of(cls, pids):
        memory = files = threads = 0
        for pid in pids:
            with open(f"/proc/{pid}/statm") as file:
                memory += int(file.read().split()[1]) * PAGE / 2**20
            files += len(os.listdir(f"/proc/{pid}/fd"))
            threads += len(os.listdir(f"/proc/{pid}/task"))
        return cls(memory, files, threads)


class Watch:
    """Looks at processes while something runs: `async with Watch(pids, progress) as seen`."""

    def __init__(self, pids, progress):
        self.pids, self.progress, self.seen = pids, progress, []

    async def __aenter__(self):
        self.task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()

    async def _look(self):
        while True:
            self.seen.append((self.progress(), Vitals.of(self.pids)))
            await asyncio.sleep(0.25)

    def slope(self):
        """Kilobytes of memory per unit of progress, by least squares over all but the first third."""
        late = self.seen[len(self.seen) // 3 :]
        x, y = np.array([(at, vitals.memory * 1024) for at, vitals in late]).T
        return float(np.polyfit(x, y, 1)[0])

    @property
    def peak(self):
        return max(vitals.memory for _, vitals in self.seen)


class Crossed(Batcher):
    """Gives the answers of two images to each other."""

    def _finish(self, batch, outcome):
        if isinstance(outcome, dict) and len(batch) > 1:
            one, other = batch[0].number, batch[1].number
            outcome = {**outcome, one: outcome[other], other: outcome[one]}
        super()._finish(batch, outcome)

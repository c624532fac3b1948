"""The service against the bare loop over the same batches, and against LitServe: one run, one machine, `cifar10-small`, one
thread for the model.

`python -m benchmarks.serve` alone; also part of `make bench`. Loopback only, some thousand requests.
"""

import asyncio
import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import quantiles

import numpy as np
import torch
from PIL import Image

import twoprong as tp
from twoprong.data import load_data
from twoprong.malloc import keep_freed_memory
from twoprong.serve import wire
from twoprong.serve.process import BUFFER, Pipe

CLIENTS, ROUNDS, BATCH, DEADLINE = 200, 10, 100, 2.0
CONFIG = f"threads = 1\n[batch]\nmax_batch = {BATCH}\ndeadline = {DEADLINE}\n"
MEGABYTES = 15


def run() -> str:
    """Images per second of all three, their ratios, and how long clients waited."""
    images = load_data("cifar10-small").test.images[:500]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the service's worker does
    try:
        before = _bare(images)
        http, seconds, batch_seconds, cost = _http(images)
        lit = _litserve(images)
        after = _bare(images)
    finally:
        torch.set_num_threads(threads)
    bare = (before + after) / 2
    cuts = quantiles(seconds, n=100)
    return (
        f"serve: {http:.0f} images/s over HTTP ({CLIENTS} clients, {len(seconds)} requests), bare loop {bare:.0f} "
        f"(before {before:.0f}, after {after:.0f}): ratio {http / bare:.2f}; requests: p50 {cuts[49]:.2f} s, "
        f"p99 {cuts[98]:.2f} s, deadline {DEADLINE:g} s + one batch {batch_seconds:.2f} s; "
        f"{1000 * cost:.2f} ms of CPU per request outside the worker\n"
        f"serve: the classifier alone behind LitServe {lit:.0f} images/s: ratio {http / lit:.2f}\n"
        f"serve: a batch of {MEGABYTES} MB to a process and back over the pipe: {asyncio.run(_pipe()) * 1000:.1f} ms"
    )


def _bare(images: torch.Tensor) -> float:
    defense = tp.load("cifar10-small")
    defense(images[:BATCH])
    start = time.perf_counter()
    for part in images.repeat(2, 1, 1, 1).split(BATCH):
        defense(part)
    return 2 * len(images) / (time.perf_counter() - start)


def _http(images: torch.Tensor) -> tuple[float, list[float], float, float]:
    """Images per second, what each request took, what a batch took on average, and the CPU time of HTTP per request."""
    requests = [_request("/v1/classify", "image/png", _png(image)) for image in images]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.toml"
        config.write_text(CONFIG)
        command = ["-m", "twoprong", "serve", "--port", "0", "--admin-port", "0", "--device", "cpu", "--config", str(config)]
        with _process(command, Path(folder) / "log") as process:
            assert process.stdout is not None
            where = json.loads(process.stdout.readline())["listening"]
            before = _cpu(process.pid)
            rate, seconds = asyncio.run(_load(where["port"], requests))
            cost = (_cpu(process.pid) - before) / (len(seconds) + BATCH)
            with urllib.request.urlopen(f"http://127.0.0.1:{where['admin_port']}/metrics") as response:
                lines = (line.partition(" ") for line in response.read().decode().splitlines())
    values = {name: float(value) for name, _, value in lines if name.startswith("twoprong_batch_seconds_")}
    return rate, seconds, values["twoprong_batch_seconds_sum"] / values["twoprong_batch_seconds_count"], cost


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _litserve(images: torch.Tensor) -> float:
    bodies = [json.dumps({"image": base64.b64encode(_png(image)).decode()}).encode() for image in images]
    requests = [_request("/predict", "application/json", body) for body in bodies]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with _process(["-m", "benchmarks.lit", str(port), str(BATCH), str(DEADLINE)], log) as process:
            while not _answers(port):
                if process.poll() is not None:
                    raise RuntimeError(f"LitServe ended: {log.read_text()[-2000:]}")
                time.sleep(0.1)
            return asyncio.run(_load(port, requests))[0]


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as response:
            return response.status == 200
    except OSError:
        return False


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process in a group of its own, all of which is ended with it."""
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _request(path: str, kind: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (
        path.encode(), kind.encode(), len(body)
    ) + body  # fmt: skip


async def _load(port: int, requests: list[bytes]) -> tuple[float, list[float]]:
    """Requests per second of clients that each wait for an answer before they ask again, and what each request took.

    The clients share the machine with what they measure, so they do little: requests are made before, answers are not read
    beyond their length.
    """
    seconds: list[float] = []

    async def client(number: int, rounds: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for turn in range(rounds):
            start = time.perf_counter()
            writer.write(requests[(number + turn * CLIENTS) % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
            seconds.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*[client(number, 1) for number in range(BATCH)])  # to warm up
    seconds.clear()
    start = time.perf_counter()
    await asyncio.gather(*[client(number, ROUNDS) for number in range(CLIENTS)])
    return len(seconds) / (time.perf_counter() - start), seconds


async def _pipe() -> float:
    """Seconds for one batch to a child that sends it back, by the service's own framing; the best of five."""
    code = "import sys\nfrom twoprong.serve import wire\nwhile (m := wire.read(sys.stdin.buffer)):\n"
    code += "    sys.stdout.buffer.write(wire.pack(*m))\n    sys.stdout.buffer.flush()\n"
    pipe, answers = Pipe(), asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=pipe.read_end, stdout=answers, limit=BUFFER
    )
    os.close(pipe.read_end)
    assert child.stdout is not None
    message, times = wire.pack({}, np.zeros(MEGABYTES * 10**6, np.uint8).tobytes()), []
    for _ in range(5):
        start = time.perf_counter()
        await pipe.send(message)
        await wire.receive(child.stdout)
        times.append(time.perf_counter() - start)
    pipe.close()
    await child.wait()
    return min(times)


def _png(image: torch.Tensor) -> bytes:
    file = io.BytesIO()
    Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy()).save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    print(run())

"""The service against the bare loop over the same batches: one run, one machine, `cifar10-small`, one thread for the model.

`python -m benchmarks.serve` alone; also part of `make bench`. Loopback only, some hundred requests.
"""

import asyncio
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import numpy as np
import torch
from PIL import Image

import twoprong as tp
from twoprong.data import load_data
from twoprong.serve import wire

CLIENTS, ROUNDS, BATCH, DEADLINE = 200, 4, 100, 2.0
CONFIG = f"threads = 1\n[batch]\nmax_batch = {BATCH}\ndeadline = {DEADLINE}\n"
MEGABYTES = 15


def run() -> str:
    """Images per second of both, their ratio, and how long clients waited."""
    images = load_data("cifar10-small").test.images[:500]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        before = _bare(images)
        http, seconds, batch_seconds = _http(images)
        after = _bare(images)
    finally:
        torch.set_num_threads(threads)
    bare = (before + after) / 2
    cuts = quantiles(seconds, n=100)
    return (
        f"serve: {http:.0f} images/s over HTTP ({CLIENTS} clients, {len(seconds)} requests), bare loop {bare:.0f} "
        f"(before {before:.0f}, after {after:.0f}): ratio {http / bare:.2f}; requests: p50 {cuts[49]:.2f} s, "
        f"p99 {cuts[98]:.2f} s, deadline {DEADLINE:g} s + one batch {batch_seconds:.2f} s\n"
        f"serve: a batch of {MEGABYTES} MB to a process and back over the pipe: {asyncio.run(_pipe()) * 1000:.1f} ms"
    )


def _bare(images: torch.Tensor) -> float:
    defense = tp.load("cifar10-small")
    defense(images[:BATCH])
    start = time.perf_counter()
    for part in images.split(BATCH):
        defense(part)
    return len(images) / (time.perf_counter() - start)


def _http(images: torch.Tensor) -> tuple[float, list[float], float]:
    bodies = [_png(image) for image in images]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.toml"
        config.write_text(CONFIG)
        command = [sys.executable, "-m", "twoprong", "serve", "--port", "0", "--admin-port", "0", "--device", "cpu"]
        with (
            (Path(folder) / "log").open("w") as log,
            subprocess.Popen([*command, "--config", str(config)], stdout=subprocess.PIPE, stderr=log) as process,
        ):
            assert process.stdout is not None
            where = json.loads(process.stdout.readline())["listening"]
            try:
                return asyncio.run(_load(where, bodies))
            finally:
                process.terminate()


async def _load(where: dict[str, int], bodies: list[bytes]) -> tuple[float, list[float], float]:
    seconds: list[float] = []

    async def client(number: int, rounds: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", where["port"])
        for turn in range(rounds):
            start = time.perf_counter()
            body = bodies[(number + turn * CLIENTS) % len(bodies)]
            writer.write(b"POST /v1/classify HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
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
    took = time.perf_counter() - start
    reader, writer = await asyncio.open_connection("127.0.0.1", where["admin_port"])
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    lines = (await reader.read()).decode().splitlines()
    writer.close()
    values = {
        name: float(value) for name, _, value in (line.partition(" ") for line in lines if line.startswith("twoprong_b"))
    }
    return len(seconds) / took, seconds, values["twoprong_batch_seconds_sum"] / values["twoprong_batch_seconds_count"]


async def _pipe() -> float:
    """Seconds for one batch to a child that sends it back, by the service's own framing; the best of five."""
    code = "import sys\nfrom twoprong.serve import wire\nwhile (m := wire.read(sys.stdin.buffer)):\n"
    code += "    sys.stdout.buffer.write(wire.pack(*m))\n    sys.stdout.buffer.flush()\n"
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe, limit=2**20)
    assert child.stdin is not None
    assert child.stdout is not None
    message, times = wire.pack({}, np.zeros(MEGABYTES * 10**6, np.uint8).tobytes()), []
    for _ in range(5):
        start = time.perf_counter()
        child.stdin.write(message)
        await child.stdin.drain()
        await wire.receive(child.stdout)
        times.append(time.perf_counter() - start)
    child.stdin.close()
    await child.wait()
    return min(times)


def _png(image: torch.Tensor) -> bytes:
    file = io.BytesIO()
    Image.fromarray((image * 255).round().byte().permute(1, 2, 0).numpy()).save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    print(run())

"""How long clients wait, by arrival rate and largest batch: `python -m benchmarks.serve_sizing`, two minutes.

The service as it comes (`cifar10-small`, a deadline of 0.25 s), one thread for the model. Single images come at random (a
Poisson process) and wait for nobody, so where more come than the model can judge, they queue. Loopback only; not part of
`make bench`.
"""

import asyncio
import json
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from statistics import quantiles

import numpy as np

from benchmarks.serve import _png, _process, _request
from twoprong.data import load_data
from twoprong.serve.settings import BatchSettings

RATES, BATCHES, SECONDS, WARM = (10, 50, 150, 300), (20, 50, 100), 8, 2  # images a second; images; seconds
SUMS = ("twoprong_batch_size_sum", "twoprong_batch_size_count", "twoprong_batch_seconds_sum")


def run() -> str:
    """A table: for each rate and largest batch the mean batch, the time it takes in the worker, and what clients wait."""
    images = load_data("cifar10-small").test.images[:500]
    requests = [_request("/v1/classify", "image/png", _png(image)) for image in images]
    deadline = BatchSettings().deadline
    lines = [
        f"deadline {deadline:g} s; images a second, largest batch: mean batch, its seconds; p50, p99 of requests; "
        "deadline + two batches"
    ]
    for most in BATCHES:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "serve.toml"
            config.write_text(f"threads = 1\n[batch]\nmax_batch = {most}\n")
            command = [
                "-m",
                "twoprong",
                "serve",
                "--port",
                "0",
                "--admin-port",
                "0",
                "--device",
                "cpu",
                "--config",
                str(config),
            ]
            with _process(command, Path(folder) / "log") as process:
                assert process.stdout is not None
                where = json.loads(process.stdout.readline())["listening"]
                asyncio.run(_at_rate(where["port"], requests, RATES[-1], WARM))
                for rate in RATES:
                    before = _sums(where["admin_port"])
                    waits = asyncio.run(_at_rate(where["port"], requests, rate, SECONDS))
                    images_, batches, took = (b - a for a, b in zip(before, _sums(where["admin_port"]), strict=True))
                    cuts, mean = quantiles(waits, n=100), took / batches
                    lines.append(
                        f"{rate:4d}, {most:3d}: {images_ / batches:5.1f}, {mean:.3f} s; {cuts[49]:.3f} s, {cuts[98]:.3f} s; "
                        f"{deadline + 2 * mean:.3f} s"
                    )
    return "\n".join(lines)


async def _at_rate(port: int, requests: list[bytes], rate: float, seconds: float) -> list[float]:
    """How long each request took; one that is not answered with 200 is an error."""
    draw, waits, idle = np.random.default_rng(0), list[float](), list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

    async def one(number: int) -> None:
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        start = time.perf_counter()
        writer.write(requests[number % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        waits.append(time.perf_counter() - start)
        idle.append((reader, writer))

    times = draw.exponential(1 / rate, int(rate * seconds)).cumsum()
    async with asyncio.TaskGroup() as group:
        for number, (earlier, later) in enumerate(pairwise([0.0, *times])):
            await asyncio.sleep(later - earlier)
            group.create_task(one(number))
    for _, writer in idle:
        writer.close()
    return waits


def _sums(port: int) -> list[float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if not line.startswith("#"))
    return [float(lines[name]) for name in SUMS]


if __name__ == "__main__":
    print(run())

"""The service on Ray Serve, all on this machine: images per second, and the CPU time of each kind of process per request.

`python -m benchmarks.serve_ray [MODELS]`; the same clients, images and bundle as `benchmarks/serve.py`, with one thread for
each model replica. RAY_SERVE_ENABLE_HA_PROXY=1 in the environment puts HAProxy in the place of Ray's own proxy. Not part of
`make bench`, where it would take as long as all others together.
"""

import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import quantiles

from benchmarks.serve import BATCH, CLIENTS, CONFIG, _cpu, _load, _png, _process, _request
from twoprong.data import load_data

REPLICA = "ray::ServeReplica:twoprong"
KINDS = {"proxy": ("ray::ProxyActor", "haproxy"), "ingress": (f"{REPLICA}:Ingress",), "model": (f"{REPLICA}:Model",)}
SHARES = "ingress_cpus = 0.1\nmodel_cpus = 0.1\n"  # so that all replicas find room on a small machine


def run(models: int = 1) -> str:
    images = load_data("cifar10-small").test.images[:500]
    requests = [_request("/v1/classify", "image/png", _png(image)) for image in images]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "serve.toml"
        config.write_text(f"{CONFIG}[ray]\nmin_models = {models}\nmax_models = {models}\n{SHARES}")
        command = ["-m", "twoprong", "serve", "--engine", "ray", "--port", "0", "--admin-port", "0", "--config", str(config)]
        with _process(command, Path(folder) / "log") as process:
            assert process.stdout is not None
            where = json.loads(process.stdout.readline())["listening"]
            before = _spent(process.pid)
            rate, seconds = asyncio.run(_load(where["port"], requests))
            spent = _spent(process.pid) - before
    cuts, asked = quantiles(seconds, n=100), len(seconds) + BATCH
    costs = ", ".join(f"{kind} {1000 * spent[kind] / asked:.2f}" for kind in KINDS)
    return (
        f"serve on Ray, {models} model replicas: {rate:.0f} images/s ({CLIENTS} clients, {len(seconds)} requests); "
        f"p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s; ms of CPU per request: {costs}"
    )


def _spent(pid: int) -> Counter[str]:
    """Seconds of CPU by kind, of a process's descendants."""
    found, waiting = Counter[str](), [pid]
    while waiting:
        one = waiting.pop()
        threads = Path(f"/proc/{one}/task").glob("*/children")
        children = [int(child) for thread in threads for child in thread.read_text().split()]
        waiting += children
        for child in children:
            name = Path(Path(f"/proc/{child}/cmdline").read_text().partition("\0")[0]).name
            for kind in [kind for kind, starts in KINDS.items() if name.startswith(starts)]:
                found[kind] += _cpu(child)
    return found


if __name__ == "__main__":
    print(run(*map(int, sys.argv[1:])))

"""Five times as many requests as can be judged: the rest is refused, little is held, and afterwards all is as before."""

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import quantiles

import pytest

from twoprong.data import load_data

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import SCALE, Connection, Vitals, Watch, picture, request, serving

CONNECTIONS = 400
# The model has to be what is overloaded, and not the clients, which share its two cores: the digits come in batches of one.
SMALL = "threads = 1\n[batch]\ndeadline = 0.1\nmax_batch = 1\nmax_per_key = 1\nleast = 1\nmax_items = 40\n"
USUAL = "threads = 1\n[batch]\nmax_items = 200\n"


class Crowd:
    """Clients who do not wait for each other."""

    def __init__(self, address, requests):
        self.address, self.requests, self.idle = address, requests, []
        self.counts, self.refused, self.answered = Counter(), [], []

    async def one(self, number):
        connection = self.idle.pop() if self.idle else Connection(self.address)
        start = time.perf_counter()
        await connection.send(self.requests[number % len(self.requests)])
        status, _ = await connection.answer()
        self.counts[status] += 1
        (self.answered if status == 200 else self.refused).append(time.perf_counter() - start)
        self.idle.append(connection)
        return status

    async def at_rate(self, rate, seconds):
        """So many requests a second, whether or not answers come; as many as there are connections may wait."""
        tasks, start, offered = set(), time.perf_counter(), 0
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0, start + number / rate - time.perf_counter()))
            if len(tasks) < CONNECTIONS:
                tasks.add(task := asyncio.create_task(self.one(number)))
                task.add_done_callback(tasks.discard)
                offered += 1
        took = time.perf_counter() - start
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        return offered / took

    async def capacity(self, seconds, clients):
        """How many requests a second are answered to clients who wait."""
        start, before = time.perf_counter(), self.counts[200]

        async def client(number):
            while time.perf_counter() < start + seconds:
                await self.one(number)

        await asyncio.gather(*map(client, range(clients)))
        return (self.counts[200] - before) / (time.perf_counter() - start)


@pytest.mark.parametrize(
    ("which", "config", "clients"),
    [("digits", SMALL, 20), ("cifar10-small", USUAL, 200)],
    ids=["digits", "cifar10-small"],
)
def test_overload_is_refused_and_soon_over(bundle, digits, tmp_path, which, config, clients):
    seconds = 60 if SCALE > 1 else 2 if which == "cifar10-small" else 1
    source = digits if which == "digits" else load_data(which)
    images = (source.test.images[:200].permute(0, 2, 3, 1).squeeze(3) * 255).round().byte().numpy()
    bodies = [request(picture(image)) for image in images]
    with serving(bundle if which == "digits" else which, tmp_path, config) as (process, where):
        pids = [process.pid]  # where the queue is; the worker has one batch at a time, overload or not

        async def main():
            crowd = Crowd(("127.0.0.1", where["port"]), bodies)
            can = await crowd.capacity(min(5, seconds), clients)
            assert {*crowd.counts} == {200}
            crowd.counts.clear()
            usual, before = quantiles(crowd.answered, n=100)[98], Vitals.of(pids)
            crowd.answered.clear()
            async with Watch(pids, lambda: sum(crowd.counts.values())) as watch:
                offered = await crowd.at_rate(5 * can, seconds)
            end = time.perf_counter()
            while True:  # back to normal: answered, and no later than before
                start = time.perf_counter()
                if await crowd.one(0) == 200 and time.perf_counter() - start <= usual:
                    break
                assert time.perf_counter() < end + 30
            return can, offered, crowd, usual, before, watch, time.perf_counter() - end

        can, offered, crowd, usual, before, watch, back = asyncio.run(main())
        late = quantiles(crowd.refused, n=100)[98]
    print(
        f"capacity {can:.0f}/s (p99 {usual:.3f} s), offered {offered:.0f}/s: {dict(crowd.counts)}, refused p99 "
        f"{1000 * late:.1f} ms, answered p99 {quantiles(crowd.answered, n=100)[98]:.3f} s, memory {before.memory:.1f} MB "
        f"before, {watch.peak:.1f} MB at most, normal again after {back:.2f} s"
    )
    assert {*crowd.counts} == {200, 503}
    assert watch.peak < before.memory + 64
    if SCALE > 1:  # alone on the machine, long enough to measure
        assert offered > 4.5 * can
        assert crowd.counts[503] > crowd.counts[200]
        assert late < 0.1
        assert back < 10

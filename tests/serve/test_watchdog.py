import asyncio
import time

from twoprong.serve.batcher import Batcher
from twoprong.serve.settings import BatchSettings
from twoprong.serve.watchdog import Watchdog


def test_a_loop_that_is_stuck_and_a_queue_that_is_overdue_are_noticed(run):
    async def never(batch):
        await asyncio.Event().wait()

    async def main():
        batcher = Batcher(never, BatchSettings(deadline=1.0, timeout=50.0))
        dog = Watchdog(batcher, limit=0.05)  # real seconds: the loop's time is made up
        beat = asyncio.create_task(dog.beat())
        await asyncio.sleep(1)
        assert dog.alive
        time.sleep(0.1)  # the loop is stuck
        assert not dog.alive
        await asyncio.sleep(1)
        assert dog.alive
        batcher.overdue = lambda now: 1.0
        time.sleep(0.1)
        await asyncio.sleep(5)  # it runs, but the queue does not move
        assert not dog.alive
        beat.cancel()

    run(main())

"""The batcher in made-up time (the fixture `run`): a campaign of random clients, and what it finds in broken batchers."""

import asyncio
import contextlib
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twoprong.serve.batcher import TOGETHER, Batcher, BatchError, DrainingError, OverloadError
from twoprong.serve.settings import BatchSettings

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import Crossed

SETTINGS = BatchSettings(
    max_batch=10, least=2, deadline=1.0, max_per_key=4, max_items=60, max_items_per_key=60, max_bytes=6000,
    max_bytes_per_key=6000, timeout=5.0,
)  # fmt: skip


async def echo(batch):
    return {entry.number: f"answer to {entry.payload}" for entry in batch}


async def submit(batcher, payload, key="a", digest=None, nbytes=10):
    with batcher.reserve(key, nbytes) as slots:
        return await slots.submit(payload, digest)


class Campaign:
    """Clients that come, repeat themselves and go at random; a judge that is slow or fails; and all that is wrong."""

    def __init__(self, seed, kind=Batcher):
        self.random, self.wrong, self.gone = random.Random(seed), [], set()
        self.counts = Counter()
        self.batcher = kind(self.judge, SETTINGS, workers=self.random.choice([1, 2]))

    async def judge(self, batch):
        keys = Counter(entry.key for entry in batch)
        if len(batch) > 10 or (len(keys) > 1 and max(keys.values()) > 4):
            self.wrong.append(f"batch of {keys}")
        if len({(entry.key, entry.payload) for entry in batch}) < len(batch):
            self.wrong.append("copies in a batch")
        if any(entry.payload in self.gone for entry in batch):
            self.wrong.append("an image that was cancelled is tested")
        await asyncio.sleep(self.random.choice([0, 0.1, 2]))
        if self.random.random() < 0.1:
            raise OSError("the judge broke")
        return {entry.number: ("answer", entry.key, entry.payload) for entry in self.random.sample(batch, len(batch))}

    async def client(self, name):
        await asyncio.sleep(self.random.uniform(0, 8))
        key, payload = self.random.choice("aaaaabbcd"), self.random.choice([name, self.random.randrange(5)])
        patience = self.random.choice([0.01, 0.5, 100, 100, 100])
        try:
            async with asyncio.timeout(patience):
                with self.batcher.reserve(key, self.random.randrange(1, 100)) as slots:
                    await asyncio.sleep(self.random.choice([0, 0, 0.02]))  # decodes
                    if self.random.random() < 0.05:
                        raise ValueError("not an image")
                    answer = await slots.submit(payload, payload)
        except (TimeoutError, ValueError, BatchError, OverloadError) as error:
            self.counts[type(error).__name__] += 1
            if payload == name:  # nobody else sends it
                self.gone.add(name)
            return
        self.counts["answered"] += 1
        if answer != ("answer", key, payload):
            self.wrong.append(f"{name} of {key} got {answer}")

    async def watch(self):
        while True:
            if self.batcher.pending > 60 or self.batcher.pending_bytes > 6000:
                self.wrong.append("more is accepted than there is room for")
            await asyncio.sleep(0.05)

    async def run(self):
        watch = asyncio.create_task(self.watch())
        await asyncio.gather(*[self.client(name) for name in range(10, 210)])
        watch.cancel()
        if not await self.batcher.drain(60) or self.batcher.pending or self.batcher.pending_bytes:
            self.wrong.append(f"{self.batcher.pending} images are held although nobody waits")
        return self.wrong


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_everyone_gets_their_own_answer_exactly_once_and_nothing_is_kept(run, seed):
    campaign = Campaign(seed)
    assert run(campaign.run()) == []
    assert campaign.counts["answered"] > 50
    assert campaign.counts["TimeoutError"] > 10


class Leaking(Batcher):
    """Forgets to give back the room of those who went while they waited."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        remove = self._forming.remove
        self._forming.remove = lambda item: remove(item) and False


class Stubborn(Batcher):
    """Tests those who went, too."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self._forming.remove = lambda item: False


class Losing(Batcher):
    """Loses the last image of a batch of many."""

    def _finish(self, batch, outcome):
        super()._finish(batch[:-1] if len(batch) > 8 else batch, outcome)


class Mixing(Batcher):
    """Lets one key have as many images as it likes in a shared batch."""

    def __init__(self, judge, given, workers):
        super().__init__(judge, given.model_copy(update={"max_per_key": 10}), workers)


@pytest.mark.parametrize("kind", [Crossed, Leaking, Stubborn, Losing, Mixing])
def test_the_campaign_finds_a_batcher_that_is_broken(run, kind):
    try:
        wrong = run(Campaign(1, kind).run())
    except RuntimeError as error:  # somebody waits for ever
        wrong = [str(error)]
    assert wrong


def test_room_is_bounded_in_images_and_bytes_and_given_back(run):
    async def main():
        batcher = Batcher(echo, SETTINGS)
        with batcher.reserve("a", 100, 60):
            with pytest.raises(OverloadError, match="too many images are waiting") as caught:
                batcher.reserve("b", 1)
            assert caught.value.retry_after >= 1
        with batcher.reserve("a", 6000), pytest.raises(OverloadError):
            batcher.reserve("b", 1)
        assert (batcher.pending, batcher.pending_bytes) == (0, 0)
        with batcher.reserve("a", 10, 3) as slots:
            assert await slots.submit("x") == "answer to x"
            assert (batcher.pending, batcher.pending_bytes) == (2, 7)
        assert (batcher.pending, batcher.pending_bytes) == (0, 0)

    run(main())


def test_one_key_cannot_take_all_the_room(run):
    async def main():
        batcher = Batcher(echo, SETTINGS.model_copy(update={"max_items_per_key": 5}))
        with batcher.reserve("a", 1, 5):
            with pytest.raises(OverloadError, match="too many of your images"):
                batcher.reserve("a", 1)
            assert await submit(batcher, "x", key="b") == "answer to x"

    run(main())


def test_more_images_than_were_reserved_are_refused(run):
    async def main():
        batcher = Batcher(echo, SETTINGS)
        with batcher.reserve("a", 1) as slots, pytest.raises(RuntimeError, match="no more images than were reserved"):
            await slots.submit_all(["x", "y"], [None, None])
        assert batcher.pending == 0

    run(main())


@pytest.mark.parametrize(
    "answers",
    [
        lambda batch: {},
        lambda batch: {entry.number + 1: "x" for entry in batch},
        lambda batch: dict.fromkeys([*(entry.number for entry in batch), 999], "x"),
        lambda batch: 1 / 0,
    ],
)
def test_a_judge_that_is_wrong_fails_its_batch_and_no_other(run, answers):
    async def judge(batch):
        return answers(batch) if any(entry.payload == "bad" for entry in batch) else await echo(batch)

    async def main():
        batcher = Batcher(judge, SETTINGS)
        bad = [submit(batcher, payload, key) for payload, key in [("bad", "a"), ("neighbour", "b")]]
        assert [type(one) for one in await asyncio.gather(*bad, return_exceptions=True)] == [BatchError] * 2
        assert await submit(batcher, "x") == "answer to x"
        assert batcher.pending == 0

    run(main())


def test_a_judge_that_hangs_fails_its_batch_after_the_time_and_is_overdue_until_then(run):
    async def judge(batch):
        if batch[0].payload == "bad":
            await asyncio.Event().wait()
        return await echo(batch)

    async def main():
        loop = asyncio.get_running_loop()
        batcher = Batcher(judge, SETTINGS)
        start = loop.time()
        hanging = asyncio.create_task(submit(batcher, "bad"))
        await asyncio.sleep(2)
        assert batcher.overdue(loop.time()) == 0
        assert batcher.overdue(loop.time() + 10) == pytest.approx(6)  # closed after 1, to end after 5 more
        with pytest.raises(BatchError):
            await hanging
        assert loop.time() - start == pytest.approx(6)
        assert await submit(batcher, "x") == "answer to x"

    run(main())


def test_the_batches_of_a_large_request_come_back_together_in_order_and_fail_together(run):
    async def judge(batch):
        if any(entry.payload == "bad" for entry in batch):
            raise OSError
        await asyncio.sleep(0.3 if batch[0].payload == "0" else 0.1)
        return await echo(batch)

    async def main():
        batcher = Batcher(judge, SETTINGS, workers=2)
        names = [str(number) for number in range(25)]
        with batcher.reserve("a", 100, 25) as slots:
            assert await slots.submit_all(names, names) == [f"answer to {name}" for name in names]
        with batcher.reserve("a", 100, 25) as slots, pytest.raises(BatchError):
            await slots.submit_all([*names[:24], "bad"], range(25))
        assert await batcher.drain(10)
        assert batcher.pending == 0

    run(main())


def test_the_event_loop_is_not_held_up_by_the_answers_of_a_batch(run):
    async def main():
        batcher = Batcher(echo, SETTINGS.model_copy(update={"max_batch": 50, "max_per_key": 50}))
        clients = [asyncio.create_task(submit(batcher, name)) for name in range(50)]
        seen = set()
        for _ in range(100):  # turns of the loop
            seen.add(sum(client.done() for client in clients))
            await asyncio.sleep(0)
        assert seen == {*range(0, 51, TOGETHER)}

    run(main())


def test_a_batch_that_ends_as_the_grace_time_does_starts_no_other_one(run):
    async def judge(batch):
        await asyncio.sleep(2)
        return await echo(batch)

    async def main():
        batcher = Batcher(judge, SETTINGS.model_copy(update={"max_batch": 2, "max_per_key": 2}))
        clients = [asyncio.create_task(submit(batcher, name)) for name in range(4)]
        await asyncio.sleep(0)
        assert not await batcher.drain(2.0)
        async with asyncio.timeout(10):
            found = await asyncio.gather(*clients, return_exceptions=True)
        assert [type(one) for one in found[2:]] == [BatchError] * 2
        assert batcher.pending == 0

    run(main())


@pytest.mark.parametrize("late", [False, True], ids=["accepted before", "submitted during the drain"])
@pytest.mark.parametrize("grace", [0.999, 1.0, 1.2, 1.5])
def test_a_drain_that_takes_too_long_leaves_nobody_without_an_answer(run, grace, late):
    """Also an image whose batch closes in the same turn of the loop, at 1.0 s, before or after the drain gives up."""

    async def judge(batch):
        await asyncio.sleep(5)
        return await echo(batch)

    async def main():
        batcher = Batcher(judge, SETTINGS)
        with batcher.reserve("a", 10) as slots:
            steps = [asyncio.create_task(slots.submit("x")) for _ in range(not late)]
            await asyncio.sleep(0)
            draining = asyncio.create_task(batcher.drain(grace))
            await asyncio.sleep(0)
            steps += [asyncio.create_task(slots.submit("x")) for _ in range(late)]
            async with asyncio.timeout(10):
                (found,) = await asyncio.gather(*steps, return_exceptions=True)
        assert type(found) is BatchError
        assert not await draining
        assert batcher.pending == 0

    run(main())


@pytest.mark.parametrize("takes", [0, 0.1, 0.4], ids=lambda takes: f"judged in {takes} s")
def test_the_pace_of_answers_does_not_tell_how_long_a_batch_was_judged(run, takes):
    """Neither by its own answers nor by those of the batches that wait behind it; the second one fails."""
    judged = []

    async def judge(batch):
        judged.append(batch)
        await asyncio.sleep(takes)
        return {} if len(judged) == 2 else await echo(batch)

    async def main():
        loop, left = asyncio.get_running_loop(), []
        batcher = Batcher(judge, SETTINGS.model_copy(update={"pace": 0.5}))

        async def client(name):
            with contextlib.suppress(BatchError):
                await submit(batcher, name)
            left.append(loop.time())

        start = loop.time()
        await asyncio.gather(*[client(name) for name in range(30)])
        assert [time - start for time in left] == pytest.approx([0.5] * 10 + [1.0] * 10 + [1.5] * 10)

    run(main())


def test_a_drain_answers_what_was_accepted_and_takes_nothing_new(run):
    async def main():
        batcher = Batcher(echo, SETTINGS)
        waiting = asyncio.create_task(submit(batcher, "x"))
        with batcher.reserve("b", 1) as slots:  # still being decoded
            await asyncio.sleep(0)
            draining = asyncio.create_task(batcher.drain(10))
            await asyncio.sleep(0)
            with pytest.raises(DrainingError):
                batcher.reserve("c", 1)
            assert await slots.submit("y") == "answer to y"
        assert await waiting == "answer to x"
        assert await draining

    run(main())


def test_a_drain_that_takes_too_long_fails_what_is_left(run):
    async def judge(batch):
        await asyncio.sleep(4)
        return await echo(batch)

    async def main():
        batcher = Batcher(judge, SETTINGS)
        waiting = [asyncio.create_task(submit(batcher, name, "ab"[name % 2])) for name in range(25)]
        with batcher.reserve("c", 1) as late:
            await asyncio.sleep(0.1)
            assert not await batcher.drain(2)
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(one) for one in outcomes] == [BatchError] * 25
            with pytest.raises(BatchError):
                await late.submit("y")
        assert batcher.pending == 0

    run(main())

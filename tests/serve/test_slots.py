"""Room that is announced, held for what comes, and given back."""

import asyncio
import gzip

import pytest
from starlette.requests import Request

from twoprong.serve.batcher import Batcher, OverloadError
from twoprong.serve.http import STEP, announced, read_body
from twoprong.serve.settings import ANONYMOUS, BatchSettings, LimitSettings


async def echo(batch):
    return {entry.number: entry.payload for entry in batch}


@pytest.fixture
def batcher():
    return Batcher(echo, BatchSettings(max_batch=10, least=2, max_per_key=4, max_items=60, max_bytes=6000))


def test_what_is_announced_has_to_fit_and_is_not_held(batcher):
    with batcher.reserve("a", 10, announced=2900) as slots:
        assert batcher.pending_bytes == 10
        with pytest.raises(OverloadError):
            batcher.reserve("b", 0, announced=5991)
        slots.extend(0, 2000)
        slots.extend(2, 500)
        assert (batcher.pending, batcher.pending_bytes) == (3, 2510)
        with batcher.reserve("b", 0, announced=3000), pytest.raises(OverloadError):
            slots.extend(0, 3491)
        assert (batcher.pending, batcher.pending_bytes) == (3, 2510)
    assert (batcher.pending, batcher.pending_bytes) == (0, 0)


def test_a_key_leaves_half_of_the_items_to_others(batcher):
    with batcher.reserve("a", 0, 30) as slots:
        with pytest.raises(OverloadError, match="too many of your images"):
            slots.extend(1, 0)
        with batcher.reserve("b", 0, 30), pytest.raises(OverloadError, match="too many images are waiting"):
            batcher.reserve("c", 0)


def test_a_key_leaves_half_of_the_bytes_to_others(run, batcher):
    async def main():
        with batcher.reserve("a", 0, announced=3000) as slots:
            slots.extend(1, 3000)
            for call, given in ((slots.extend, (0, 1)), (batcher.reserve, ("a", 1)), (batcher.reserve, ("a", 0, 1, 1))):
                with pytest.raises(OverloadError, match="too many of your images"):
                    call(*given)
            assert await slots.submit("x") == "x"  # gives back its half
            with batcher.reserve("a", 1500), batcher.reserve("b", 3000):
                assert batcher.pending_bytes == 6000
        assert batcher.pending_bytes == 0

    run(main())


def test_clients_without_a_key_may_have_all_of_it(batcher):
    with batcher.reserve(ANONYMOUS, 6000, 60):
        assert (batcher.pending, batcher.pending_bytes) == (60, 6000)
    assert (batcher.pending, batcher.pending_bytes) == (0, 0)


def test_a_drain_waits_for_a_body_that_is_being_read(run, batcher):
    async def main():
        with batcher.reserve("a", 0, announced=100) as slots:
            draining = asyncio.create_task(batcher.drain(10))
            await asyncio.sleep(1)
            assert not draining.done()
            slots.extend(1, 100)
            assert await slots.submit_all(["x", "y"], ["x", "y"]) == ["x", "y"]
        assert await draining
        assert (batcher.pending, batcher.pending_bytes) == (0, 0)

    run(main())


ZIPPED = gzip.compress(b"a" * 10)


def request(chunks, headers):
    rest = iter(chunks)

    async def receive():
        body = next(rest, None)
        return {"type": "http.request", "body": body or b"", "more_body": body is not None}

    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


@pytest.mark.parametrize(
    ("chunks", "headers", "held"),
    [
        ([b"a" * 10], [(b"content-length", b"10")], 10),
        ([b"a" * 10], [], 10 + STEP),
        ([b"a" * 1000] * 100, [(b"content-length", b"100000")], 100_000),
        ([b"a" * 1000] * 1000, [], 10**6),
        ([gzip.compress(b"a" * 900_000)], [(b"content-encoding", b"gzip")], 900_000),
        ([ZIPPED], [(b"content-encoding", b"gzip")], len(ZIPPED) + STEP),
    ],
)
def test_a_body_that_was_read_is_held(chunks, headers, held):
    async def main():
        batcher, limits = Batcher(echo, BatchSettings()), LimitSettings(max_upload=10**6)
        asked = request(chunks, headers)
        size = announced(asked, limits)
        with batcher.reserve("a", 0, announced=size) as slots:
            body = await read_body(asked, limits, slots, size)
            assert len(body) <= batcher.pending_bytes == held
        assert batcher.pending_bytes == 0

    asyncio.run(main())

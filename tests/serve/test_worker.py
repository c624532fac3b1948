"""The worker process, for real: loaded, asked, killed, late, and never there."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import uvloop

import twoprong as tp
from twoprong.errors import StateError, TwoprongError
from twoprong.serve import wire
from twoprong.serve.batcher import Batcher, BatchError
from twoprong.serve.forming import Entry, Item
from twoprong.serve.process import ModelProcess
from twoprong.serve.settings import BatchSettings
from twoprong.serve.worker import Worker, WorkerError, WorkerSettings

sys.path.insert(0, str(Path(__file__).parent))
from serve_load import children


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Gives a coroutine's result: by Python's own loop, and by the one that the command has where it is installed."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


def entries(images, keys=None):
    return [
        Entry(0.0, [Item(7 * number, "a" if keys is None else keys[number], image, number)])
        for number, image in enumerate(images)
    ]


def test_answers_come_by_number_a_killed_worker_fails_one_batch_and_comes_back(run, bundle, digits):
    images = digits.test.images[:40]
    floats = list(images.numpy())
    bytes_ = list((images * 255).round().byte().numpy())

    async def main():
        worker = Worker(WorkerSettings(str(bundle), threads=1))
        model = await worker.start()
        try:
            assert (model.name, model.shape, model.sizes) == ("digits", (1, 8, 8), (1, 120))
            found, facts = await worker(entries(floats))
            expected = tp.load(bundle)(images).probabilities.numpy()
            assert list(found) == [7 * number for number in range(40)]
            assert np.allclose(np.stack(list(found.values())), expected, atol=1e-6)
            mixed, _ = await worker(entries(floats[:20] + bytes_[20:]))
            coarse = torch.cat([images[:20], (images[20:] * 255).round() / 255])
            assert np.allclose(np.stack(list(mixed.values())), tp.load(bundle)(coarse).probabilities.numpy(), atol=1e-6)
            assert (facts.size, facts.tested, facts.adversarial) == (40, True, False)
            assert facts.statistic < facts.threshold

            with pytest.raises(TwoprongError, match="InputError"):
                await worker(entries([np.full((1, 8, 8), 2, np.float32)] * 2))
            assert worker.restarts == 0  # a batch that fails is answered, too

            first = worker.pid
            os.kill(first, signal.SIGSTOP)  # in the middle of a batch
            asked = asyncio.create_task(worker(entries(floats)))
            await asyncio.sleep(0)
            os.kill(first, signal.SIGKILL)
            with pytest.raises(WorkerError):
                await asked
            again, facts = await worker(entries(floats), {"a", "b"})
            assert len(again) == 40
            assert all(facts.flagged)  # for "a" is watched
            assert not facts.adversarial
            assert (worker.restarts, worker.pid == first) == (1, False)
        finally:
            await worker.stop()
        assert worker.restarts == 1

    run(main())


def test_images_of_clients_who_left_while_the_worker_was_away_are_not_judged(run, bundle, digits):
    images = list(digits.test.images[:4].numpy())

    async def main():
        worker = Worker(WorkerSettings(str(bundle), threads=1), spare=False)
        await worker.start()
        loop = asyncio.get_running_loop()
        try:
            one, other = entries(images), entries(images)
            for entry in one + other:
                entry.items[0].future = loop.create_future()
            one[3].items.append(Item(99, "a", images[3], 3, future=loop.create_future()))  # a copy, whose client stays
            os.kill(worker.pid, signal.SIGKILL)
            while worker.ready:
                await asyncio.sleep(0.01)
            asked = [asyncio.create_task(worker(batch)) for batch in (one, other)]
            await asyncio.sleep(0)
            for entry in [*one[1:], *other]:
                entry.items[0].future.cancel()
            (answers, facts), nothing = [await one for one in asked]
            assert ([*answers], facts.size) == ([0, 21], 2)
            assert nothing == ({}, None)
        finally:
            await worker.stop()

    run(main())


@pytest.mark.parametrize("spare", [True, False])
def test_a_spare_process_takes_the_place_of_one_that_dies_and_where_both_die_there_is_a_new_one(run, bundle, digits, spare):
    async def main():
        worker = Worker(WorkerSettings(str(bundle), threads=1), spare)
        before = set(children(os.getpid()))
        await worker.start()
        try:
            batch = entries(list(digits.test.images[:4].numpy()))
            await asyncio.sleep(0)
            (waiting,) = set(children(os.getpid())) - before - {worker.pid} or {None}
            assert (waiting is not None) == spare
            os.kill(worker.pid, signal.SIGKILL)
            assert len((await again(worker, batch))[0]) == 4
            assert (worker.pid == waiting) == spare
            for pid in set(children(os.getpid())) - before:
                os.kill(pid, signal.SIGKILL)
            assert len((await again(worker, batch))[0]) == 4
        finally:
            await worker.stop()
        assert set(children(os.getpid())) == before

    run(main())


def test_a_batch_that_the_worker_does_not_read_is_given_up_and_the_next_one_is_judged(run, bundle, digits):
    """More than a pipe holds, to a process that stands still."""

    async def main():
        worker = Worker(WorkerSettings(str(bundle), threads=1))
        await worker.start()
        try:
            os.kill(worker.pid, signal.SIGSTOP)
            large = [np.zeros((1, 8, 8), np.float32)] * 10_000
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await worker(entries(large))
            assert len((await worker(entries(list(digits.test.images[:4].numpy()))))[0]) == 4
            assert worker.restarts == 1
        finally:
            await worker.stop()

    run(main())


@pytest.mark.parametrize("error", [asyncio.IncompleteReadError(b"", 4), MemoryError()], ids=["closed", "misread"])
def test_a_worker_that_cannot_be_understood_is_replaced(run, bundle, digits, monkeypatch, error):
    """It may live on, its pipe closed; and what it still says would be taken for the answer to the next batch."""
    images = list(digits.test.images[:4].numpy())

    async def main():
        worker = Worker(WorkerSettings(str(bundle), threads=1))
        await worker.start()
        receive = wire.receive

        async def misread(reader):
            monkeypatch.setattr(wire, "receive", receive)
            raise error

        try:
            expected = await worker(entries(images))
            monkeypatch.setattr(wire, "receive", misread)
            with pytest.raises((WorkerError, MemoryError)):
                await worker(entries(images[:2]))
            async with asyncio.timeout(30):
                answers, _ = await worker(entries(images))
            assert {number: row.argmax() for number, row in answers.items()} == {
                number: row.argmax() for number, row in expected[0].items()
            }
            assert worker.restarts == 1
        finally:
            await worker.stop()

    run(main())


def test_a_process_ends_however_much_of_what_it_said_was_not_read(run, monkeypatch):
    code = "import sys, time\nsys.stdout.buffer.write(b'\\0' * 2**26)\nsys.stdout.buffer.flush()\ntime.sleep(60)"
    start = asyncio.create_subprocess_exec

    async def talkative(*_, **settings):
        return await start(sys.executable, "-c", code, **settings)

    async def main():
        monkeypatch.setattr(asyncio, "create_subprocess_exec", talkative)
        process = await ModelProcess.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await process.ended()  # meanwhile it is read into the buffer
        async with asyncio.timeout(10):
            await process.end()

    run(main())


def test_where_no_process_can_be_started_that_is_said(run, bundle, monkeypatch):
    async def cannot(*_, **settings):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", cannot)
    with pytest.raises(StateError, match=r"no worker process can be started: .*Resource temporarily"):
        run(Worker(WorkerSettings(str(bundle))).start())


def test_a_spare_that_has_died_does_no_harm(run, bundle, digits):
    async def main():
        worker = Worker(WorkerSettings(str(bundle), threads=1))
        before = set(children(os.getpid()))
        await worker.start()
        try:
            await asyncio.sleep(0)
            (waiting,) = set(children(os.getpid())) - before - {worker.pid}
            os.kill(waiting, signal.SIGKILL)
            while waiting in children(os.getpid()):  # until it has been waited for
                await asyncio.sleep(0.01)
            os.kill(worker.pid, signal.SIGKILL)
            assert len((await again(worker, entries(list(digits.test.images[:4].numpy()))))[0]) == 4
            assert worker.restarts == 1
        finally:
            await worker.stop()

    run(main())


def test_while_no_process_can_be_started_it_goes_on_trying(run, bundle, digits, monkeypatch):
    async def main():
        worker = Worker(WorkerSettings(str(bundle), threads=1), spare=False)
        await worker.start()
        start, tries = ModelProcess.start, []

        async def cannot():
            tries.append(1)
            if len(tries) < 3:
                raise RuntimeError("can't start new thread")
            return await start()

        monkeypatch.setattr(ModelProcess, "start", cannot)
        try:
            os.kill(worker.pid, signal.SIGKILL)
            assert len((await again(worker, entries(list(digits.test.images[:4].numpy()))))[0]) == 4
            assert len(tries) == 3
        finally:
            await worker.stop()

    run(main())


@pytest.mark.parametrize("broken", ["start", "ended"])
def test_the_minder_outlives_errors_that_nobody_foresaw(run, bundle, digits, monkeypatch, caplog, broken):
    """No memory for a spare process; or a process that cannot be waited for."""

    async def main():
        worker, real, calls = Worker(WorkerSettings(str(bundle), threads=1)), getattr(ModelProcess, broken), []

        async def fails_once(*process):
            calls.append(1)
            if len(calls) == (2 if broken == "start" else 1):  # the first process to start is the worker itself
                raise MemoryError
            return await real(*process)

        monkeypatch.setattr(ModelProcess, broken, fails_once)
        await worker.start()
        try:
            async with asyncio.timeout(30):
                while "MemoryError" not in caplog.text:
                    await asyncio.sleep(0.01)
                os.kill(worker.pid, signal.SIGKILL)
                assert len((await again(worker, entries(list(digits.test.images[:4].numpy()))))[0]) == 4
            assert worker.restarts == 1
        finally:
            await worker.stop()

    run(main())


async def again(worker, batch):
    """The answer to a batch; one that the dead process was given fails."""
    try:
        return await worker(batch)
    except WorkerError:
        return await worker(batch)


def test_a_worker_that_is_late_is_killed_and_replaced_and_ignores_sigterm(run, bundle, digits):
    async def main():
        worker = Worker(WorkerSettings(str(bundle), threads=1))
        await worker.start()

        async def judge(batch):
            return (await worker(batch))[0]

        batcher = Batcher(judge, BatchSettings(timeout=0.5, deadline=0.01))

        async def classify(image):
            with batcher.reserve("a", 100) as slots:
                return await slots.submit(image)

        try:
            os.kill(worker.pid, signal.SIGTERM)
            images = list(digits.test.images[:4].numpy())
            os.kill(worker.pid, signal.SIGSTOP)
            outcomes = await asyncio.gather(*map(classify, images), return_exceptions=True)
            assert [type(one) for one in outcomes] == [BatchError] * 4
            batcher.settings = batcher.settings.model_copy(update={"timeout": 60.0})
            assert len(await asyncio.gather(*map(classify, images))) == 4
            assert worker.restarts == 1
        finally:
            await worker.stop()

    run(main())


def test_a_bundle_that_cannot_be_loaded_is_said_in_its_own_words(run, tmp_path):
    with pytest.raises(StateError, match="no such bundle"):
        run(Worker(WorkerSettings(str(tmp_path / "nothing"))).start())


def test_a_bundle_that_refuses_flagged_images_is_not_served(run, bundle, tmp_path):
    defense = tp.load(bundle)
    defense.config = defense.config.model_copy(update={"rescue": "refuse"})
    defense.save(tmp_path / "refusing")
    with pytest.raises(StateError, match="hands flagged images back unclassified"):
        run(Worker(WorkerSettings(str(tmp_path / "refusing"))).start())

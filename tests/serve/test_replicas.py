"""The service's end of Ray's model replicas, over a handle that is made up."""

import asyncio
import threading

import pytest

pytest.importorskip("ray")

from ray.exceptions import ActorUnavailableError, RayError
from ray.serve.exceptions import DeploymentUnavailableError

from twoprong.errors import StateError, TwoprongError
from twoprong.serve import replicas as module
from twoprong.serve.forming import Entry, Item
from twoprong.serve.replicas import ModelReplica, Replicas
from twoprong.serve.worker import WorkerError, WorkerSettings

ABOUT = {"name": "a", "shape": [1, 8, 8], "sizes": [1, 120], "classes": None, "false_alarm_rate": 0.05, "samples": []}


class Response:
    def __init__(self, said):
        self.said, self.cancelled = said, False

    def __await__(self):
        return self._come().__await__()

    async def _come(self):
        if self.said is None:
            await asyncio.Event().wait()
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def cancel(self):
        self.cancelled = True


class Handle:
    """Answers every method with what is set for it; None never comes."""

    def __init__(self, **said):
        self.said, self.asked, self.given = said, [], []

    def __getattr__(self, method):
        class Method:
            @staticmethod
            def remote(*given):
                self.given.append((method, given))
                self.asked.append((method, Response(self.said[method])))
                return self.asked[-1][1]

        return Method


def entries(digits, count=3):
    return [Entry(0.0, [Item(number, "a", digits.test.images[number].numpy(), number)]) for number in range(count)]


@pytest.mark.parametrize("error", [ActorUnavailableError("gone", None), DeploymentUnavailableError(None), RayError("x")])
def test_a_lost_replica_is_a_lost_batch_and_readiness_comes_back_with_a_ping(run, digits, error):
    handle = Handle(about=ABOUT, judge=error, ping=RayError("no"))

    async def main():
        workers = Replicas(handle, WorkerSettings("a"))
        assert (await workers.start()).shape == (1, 8, 8)
        assert workers.ready
        with pytest.raises(WorkerError, match=type(error).__name__):
            await workers(entries(digits))
        assert (workers.ready, workers.restarts) == (False, 1)
        await asyncio.sleep(3)
        assert not workers.ready
        handle.said["ping"] = True
        await asyncio.sleep(1)
        assert workers.ready
        await workers.stop()
        assert not workers.ready

    run(main())


def test_a_batch_waits_for_a_replica_and_images_of_clients_who_left_meanwhile_are_not_judged(run, digits):
    handle = Handle(about=ABOUT, judge=RayError("lost"), ping=RayError("no"))

    async def main():
        workers = Replicas(handle, WorkerSettings("a"))
        await workers.start()
        with pytest.raises(WorkerError):
            await workers(entries(digits))
        batch, gone = entries(digits), entries(digits)
        for entry in batch + gone:
            entry.items[0].future = asyncio.get_running_loop().create_future()
        asked = [asyncio.create_task(workers(one)) for one in (batch, gone)]
        await asyncio.sleep(3)
        assert [method for method, _ in handle.asked].count("judge") == 1
        for entry in [batch[1], *gone]:
            entry.items[0].future.cancel()
        handle.said |= {"ping": True, "judge": ({"error": "InputError: x"}, b"")}
        with pytest.raises(TwoprongError, match="InputError"):
            await asked[0]
        assert await asked[1] == ({}, None)
        assert [given[0]["numbers"] for method, given in handle.given if method == "judge"] == [[0, 1, 2], [0, 2]]
        await workers.stop()

    run(main())


def test_replicas_that_are_silent_are_not_ready_and_a_late_batch_is_cancelled(run, digits):
    handle = Handle(about=ABOUT, judge=None, ping=None)

    async def main():
        workers = Replicas(handle, WorkerSettings("a"))
        await workers.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await workers(entries(digits))
        method, response = handle.asked[-1]
        assert (method, response.cancelled) == ("judge", True)  # while a batch is under way nobody is asked besides
        assert not workers.ready
        handle.said["ping"] = True
        await asyncio.sleep(1)
        assert workers.ready
        handle.said["ping"] = None
        await asyncio.sleep(module.QUIET + module.PATIENCE + 1)
        assert not workers.ready
        await workers.stop()

    run(main())


def test_a_service_without_replicas_does_not_start(run):
    with pytest.raises(StateError, match="no model replica came up"):
        run(Replicas(Handle(about=None), WorkerSettings("a")).start())


def test_a_batch_that_fails_says_why(run, digits):
    handle = Handle(about=ABOUT, judge=({"error": "InputError: x"}, b""))

    async def main():
        workers = Replicas(handle, WorkerSettings("a"))
        await workers.start()
        with pytest.raises(TwoprongError, match="InputError"):
            await workers(entries(digits))
        assert (workers.ready, workers.restarts) == (True, 0)
        await workers.stop()

    run(main())


def test_a_replica_judges_one_batch_at_a_time_and_is_unhealthy_when_one_takes_too_long(monkeypatch):
    started, go_on, inside, most = threading.Event(), threading.Event(), [], []

    class Slow:
        about = ABOUT

        def __init__(self, settings):
            assert settings["bundle"] == "a"

        def answer(self, head, body):
            inside.append(head)
            most.append(len(inside))
            started.set()
            assert go_on.wait(30)
            inside.pop()
            return head, body

    monkeypatch.setattr(module, "LoadedModel", Slow)

    async def main():
        replica = ModelReplica(WorkerSettings("a"), timeout=0.0)
        await replica.check_health()
        asked = [asyncio.create_task(replica.judge({"number": number}, b"")) for number in range(3)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(started.wait, 30)
        with pytest.raises(StateError, match="longer than"):
            await replica.check_health()
        go_on.set()
        assert [head["number"] for head, _ in await asyncio.gather(*asked)] == [0, 1, 2]
        await replica.check_health()
        assert max(most) == 1

    asyncio.run(main())

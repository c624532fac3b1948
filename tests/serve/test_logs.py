"""What the log says, in both formats: of a whole service whose model alarms and fails on demand."""

import asyncio
import io
import json
import logging
import re

import numpy as np
import pytest

from twoprong.errors import TwoprongError
from twoprong.serve.batcher import BatchError
from twoprong.serve.logs import REQUEST_ID, log_to
from twoprong.serve.metrics import Metrics
from twoprong.serve.service import Service
from twoprong.serve.settings import BatchSettings, ServeSettings
from twoprong.serve.worker import BatchFacts, Model, WorkerSettings

ALARM = {"batch": 2, "size": 3, "statistic": 0.25, "threshold": 0.1, "p_value": 0.005, "blamed": ["bob <b>"],
         "requests": ["request-1", "request-2", "request-3"], "route": "divided"}  # fmt: skip


@pytest.fixture
def logged():
    """Gives the lines that are written while a function runs."""
    before = {
        name: (logging.getLogger(name).handlers, logging.getLogger(name).propagate) for name in ("twoprong", "uvicorn.error")
    }

    def lines(as_json, work):
        stream = io.StringIO()
        log_to(logging.StreamHandler(stream), as_json)
        work()
        return stream.getvalue().splitlines()

    yield lines
    for name, (handlers, propagate) in before.items():
        logging.getLogger(name).handlers, logging.getLogger(name).propagate = handlers, propagate


class Told:
    """In place of a worker: the first batch passes, the second one is an alarm, the third one fails."""

    settings, ready, restarts = WorkerSettings("told"), True, 0

    def __init__(self):
        self.batches = 0

    async def __call__(self, batch, watched=()):
        self.batches += 1
        if self.batches == 3:
            raise TwoprongError("no memory\nlevel=info")
        keys, alarm = tuple(entry.key for entry in batch), self.batches == 2
        flagged = tuple(alarm and key == "bob <b>" for key in keys)
        blamed, numbers = ("bob <b>",) if alarm else (), (0.25, 0.1, 0.005) if alarm else (0.0, 0.1, 0.5)
        facts = BatchFacts(len(batch), keys, flagged, flagged, blamed, alarm, True, *numbers)
        return {entry.number: np.ones(10) for entry in batch}, facts


async def three_batches():
    model = Model("told", (1, 2, 2), (1, 3), None, 0.05)
    service = Service(
        ServeSettings(batch=BatchSettings(max_batch=3, deadline=0.01, max_per_key=3)), Told(), model, Metrics()
    )

    async def ask(number, key):
        REQUEST_ID.set(f"request-{number}")
        with service.batcher.reserve(key, 4) as slots:
            try:
                await slots.submit(np.zeros((1, 2, 2), np.uint8))
            except BatchError:
                return "failed"

    for _ in range(3):
        answers = await asyncio.gather(ask(3, "alice"), ask(1, "bob <b>"), ask(2, "alice"))
    assert answers == ["failed"] * 3
    service.decoders.shutdown()


def test_alarms_and_failed_batches_are_one_line_each_with_the_ids_of_their_requests(logged):
    lines = [json.loads(line) for line in logged(True, lambda: asyncio.run(three_batches()))]
    alarm, failed = (next(line for line in lines if line["message"] == said) for said in ("alarm", "a batch failed"))
    assert alarm == {"time": alarm["time"], "level": "warning", "message": "alarm"} | ALARM
    assert failed == {
        "time": failed["time"], "level": "error", "message": "a batch failed", "size": 3,
        "error": r"TwoprongError('no memory\nlevel=info')", "requests": ALARM["requests"],
    }  # fmt: skip
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", alarm["time"])
    assert sum(line["message"] == "alarm" for line in lines) == 1


def test_for_people_the_same_is_one_line_of_text(logged):
    lines = logged(False, lambda: asyncio.run(three_batches()))
    alarm, failed = (next(line for line in lines if f" {said} " in line) for said in ("alarm", "a batch failed"))
    assert alarm.partition(" ")[2] == (
        'warning alarm batch=2 size=3 statistic=0.25 threshold=0.1 p_value=0.005 blamed=["bob <b>"] '
        'requests=["request-1", "request-2", "request-3"] route=divided'
    )
    assert r"""size=3 error="TwoprongError('no memory\\nlevel=info')" requests=[""" in failed


@pytest.mark.parametrize("as_json", [True, False])
def test_an_error_has_its_traceback(logged, as_json):
    def fail():
        try:
            raise ValueError("here")
        except ValueError:
            logging.getLogger("twoprong").exception("request %s failed", "a-1")

    lines = logged(as_json, fail)
    if as_json:
        (said,) = map(json.loads, lines)
        assert (said["level"], said["message"]) == ("error", "request a-1 failed")
        assert said["traceback"].endswith("ValueError: here")
    else:
        assert lines[0].endswith(" error   request a-1 failed")
        assert lines[-1] == "ValueError: here"

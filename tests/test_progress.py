import io
import sys

import pytest
from rich.console import Console

import twoprong as tp
from twoprong import recipe
from twoprong.evaluation import run
from twoprong.progress import bars, showing, silent


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def turn_on():  # in the test itself: between set-up and call pytest puts its own stream there
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return turn_on


def report(progress):
    with showing(progress) as listen:
        listen("craft", 1, 2, "loss 0.5")
        listen("craft", 2, 2)
    return listen


@pytest.mark.parametrize("progress", [None, True])
def test_on_a_terminal_bars_are_drawn_unless_told_otherwise(terminal, progress):
    shown = terminal()
    report(progress)
    assert "craft" in shown.getvalue()
    assert "2/2" in shown.getvalue()


def test_false_draws_nothing_even_on_a_terminal(terminal):
    shown = terminal()
    assert report(False) is silent
    assert shown.getvalue() == ""


@pytest.mark.parametrize("progress", [None, True, False])
def test_elsewhere_nothing_is_written(monkeypatch, progress):
    for stream in (io.StringIO(), None):  # None: a program without a console
        monkeypatch.setattr(sys, "stderr", stream)
        assert report(progress) is silent
        assert stream is None or stream.getvalue() == ""


def test_a_listener_is_called_and_nothing_is_drawn(terminal):
    heard, shown = [], terminal()

    def listen(stage, done, total, note=""):
        heard.append((stage, done, total, note))

    report(listen)
    assert heard == [("craft", 1, 2, "loss 0.5"), ("craft", 2, 2, "")]
    assert shown.getvalue() == ""


def test_each_stage_has_a_bar_of_its_own():
    shown = io.StringIO()
    with bars(Console(file=shown, force_terminal=True, width=120)) as listen:
        listen("craft", 1, 2)
        listen("calibrate", 3, 3)
    assert "1/2" in shown.getvalue()
    assert "3/3" in shown.getvalue()


def test_predict_shows_a_bar_in_a_terminal(defense, digits, terminal):
    shown = terminal()
    defense.predict(digits.test.images[:50])
    assert "predict" in shown.getvalue()
    assert "50/50" in shown.getvalue()


class NoMoreNeededError(Exception):
    pass


@pytest.mark.parametrize("progress", [{}, {"progress": False}])
def test_fit_and_evaluate_choose_what_is_shown_like_predict(monkeypatch, defense, digits, progress):
    asked = []

    def stop(progress):
        asked.append(progress)
        raise NoMoreNeededError

    for module in (recipe, run):
        monkeypatch.setattr(module, "showing", stop)
    with pytest.raises(NoMoreNeededError):
        tp.fit(defense.classifier, digits.train, **progress)
    with pytest.raises(NoMoreNeededError):
        tp.evaluate(defense, digits.test, **progress)
    assert asked == [progress.get("progress")] * 2

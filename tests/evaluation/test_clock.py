import pytest

from twoprong.evaluation.clock import Clock


def test_the_time_left_is_what_computed_work_has_taken_and_ends_with_the_run():
    heard = []
    clock = Clock(lambda *said: heard.append(said), total=100)
    clock.add("resumed", 40, seconds=7.0, fresh=False)
    clock.add("route", 20, seconds=10.0, fresh=True)
    assert heard[0] == ("evaluate", 40, 100, "resumed")  # nothing was computed yet: no guess
    assert heard[1] == ("evaluate", 60, 100, "route, about 20 s left")
    clock.add("evade", 10, seconds=290.0, fresh=True)
    assert heard[2][3] == "evade, about 5 min left"
    clock.add("more than was thought", 100, seconds=1.0, fresh=True)
    assert heard[3][1] == 99  # not done before it is
    clock.finish()
    assert heard[4][1:3] == (100, 100)


def test_seconds_are_booked_by_part_those_of_an_earlier_run_too():
    clock = Clock(lambda *_: None, total=10)
    clock.add("route", 1, 2.5, fresh=False)
    clock.add("route", 1, 1.5, fresh=True)
    clock.add("evade", 1, 1.0, fresh=True)
    assert clock.parts == pytest.approx({"route": 4.0, "evade": 1.0})

import pytest

from twoprong.evaluation.clock import SURE, Clock, Work


def heard_by(*planned):
    heard = []
    return heard, Clock(lambda *said: heard.append(said), planned)


def test_an_attack_that_has_run_on_one_batch_tells_how_long_the_others_take():
    """Whatever its cost was thought to be, and whatever other attacks took."""
    heard, clock = heard_by(Work("quick", "quick", 100), Work("slow", "slow", 100))
    clock.add("quick", 50, seconds=1.0)
    clock.add("slow", 50, seconds=99.0)
    low, high = clock.left()
    assert low == pytest.approx(100 / SURE)
    assert high == pytest.approx(100 * SURE)
    assert heard[-1] == ("evaluate", 500, 1000, "slow, about 2 min left")
    clock.add("slow", 50, seconds=99.0)
    assert heard[-1][3] == "slow, about 1 s left"


def test_until_enough_is_known_nothing_is_told():
    heard, clock = heard_by(Work("first", "pgd", 10), Work("other", "evade", 1000))
    clock.add("first", 10, seconds=3.0)
    assert heard[-1][3] == "first"


def test_an_attack_with_other_settings_gives_a_range():
    heard, clock = heard_by(Work("evade", "evade", 10), Work("evade at eps 0.1", "evade", 20), Work("noise", "noise", 1))
    clock.add("noise", 1, seconds=50.0)
    clock.add("evade", 10, seconds=20.0)
    low, high = clock.left()
    assert low < 40 < high
    assert heard[-1][3] == f"evade, up to {high / 60:.0f} min left"
    clock.add("evade at eps 0.1", 10, seconds=20.0)
    assert clock.left()[1] < 40


def test_recent_pieces_weigh_more():
    """The first one of a process pays for compiling."""
    _, clock = heard_by(Work("route", "route", 5))
    for seconds in (100.0, 1.0, 1.0, 1.0):
        clock.add("route", 1, seconds)
    assert clock.left()[1] < 103 / 4  # the mean


def test_the_bar_never_goes_back_and_ends_with_the_run():
    heard, clock = heard_by(Work("a", "a", 4), Work("b", "b", 4))
    for group, seconds in [("a", 1.0), ("a", 1.0), ("b", 500.0), ("b", 1.0), ("a", 1.0), ("not planned", 9.0)]:
        clock.add(group, 2, seconds)
    done = [said[1] for said in heard]
    assert done == sorted(done)
    assert done[-1] <= 999
    clock.finish()
    assert heard[-1][1:3] == (1000, 1000)


def test_work_that_is_not_done_after_all_is_not_waited_for():
    _, clock = heard_by(Work("a", "a", 4), Work("b", "b", 400))
    clock.add("a", 2, 1.0)
    clock.expect(Work("b", "b", 0.0))
    assert clock.left() == pytest.approx((1.0 / SURE, 1.0 * SURE))


def test_seconds_are_booked_by_part():
    _, clock = heard_by(Work("route", "route", 3), Work("convergence", "route", 3))
    clock.add("route", 1, 2.5)
    clock.add("route", 1, 1.5)
    clock.add("convergence", 1, 1.0, part="sanity checks")
    assert clock.parts == pytest.approx({"route": 4.0, "sanity checks": 1.0})

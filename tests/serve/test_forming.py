from itertools import count
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twoprong.serve.forming import REMEMBERED, Forming, Item
from twoprong.serve.settings import BatchSettings

SETTINGS = BatchSettings(max_batch=10, least=2, deadline=1.0, max_per_key=4)


@pytest.fixture
def queue():
    return Forming(SETTINGS)


NUMBERS = count()


def add(queue, key, now, images=1, digest=None):
    items = []
    for _ in range(images):
        number = next(NUMBERS)
        items.append(Item(number, key, None, (number,) if digest is None else digest))
        queue.add(items[-1], now)
    return items


def keys(batch):
    return "".join(sorted(entry.key for entry in batch))


def test_a_full_batch_does_not_wait(queue):
    add(queue, "a", 5.0, 9)
    assert queue.take(5.0) == []
    add(queue, "a", 5.0, 3)
    assert keys(queue.take(5.0)) == "a" * 10
    assert len(queue) == 2


def test_one_image_alone_waits_to_the_end_of_its_deadline(queue):
    add(queue, "a", 5.0)
    assert queue.wake(5.0) == 6.0
    assert queue.take(5.99) == []
    assert keys(queue.take(6.0)) == "a"
    assert queue.wake(6.0) == float("inf")


def test_nobody_waits_for_longer_than_the_deadline_although_more_keep_coming(queue):
    for step in range(10):
        now = 5 + step / 8
        batch = queue.take(now)
        if batch:
            assert now == 5.875  # silent for 0.125, and 0.125 left
            assert len(batch) == 7
            return
        add(queue, "abcdefghij"[step], now)
    pytest.fail("the batch never closed")


def test_after_a_silence_as_long_as_the_time_left_nobody_is_waited_for(queue):
    add(queue, "a", 5.0)
    add(queue, "b", 5.2)
    assert queue.wake(5.2) == pytest.approx(5.6)  # silent for 0.4, and 0.4 left
    assert queue.take(5.59) == []
    assert keys(queue.take(5.61)) == "ab"


def test_keys_share_a_batch_and_a_key_with_many_images_gets_its_own(queue):
    add(queue, "a", 5.0, 5)
    add(queue, "b", 5.0, 2)
    add(queue, "c", 5.0, 4)
    assert [keys(queue.take(6.0)), keys(queue.take(6.0)), queue.take(6.0)] == ["aaaaa", "bbcccc", []]


def test_a_key_that_had_a_batch_of_its_own_stays_out_of_shared_ones_while_it_is_fast(queue):
    add(queue, "a", 5.0, 10)
    assert keys(queue.take(5.0)) == "a" * 10
    add(queue, "b", 5.0, 2)
    add(queue, "a", 5.9, 3)
    assert keys(queue.take(6.0)) == "bb"
    add(queue, "c", 6.0, 2)
    assert keys(queue.take(6.95)) == "aaacc"  # it became slow, and its own three are due


def test_keys_that_are_fast_are_waited_for_although_together_they_fill_a_batch(queue):
    for step in range(6):
        add(queue, "a", 5 + step / 100)
        add(queue, "b", 5 + step / 100)
        if step < 1:
            add(queue, "c", 5.0, 2)
        assert queue.take(5 + step / 100) == []
    assert keys(queue.take(6.0)) == "aaaaaa"
    assert keys(queue.take(6.0)) == "bbbbbb"
    assert keys(queue.take(6.0)) == "cc"


def test_a_fast_key_shares_where_the_others_could_not_be_tested_without_it(queue):
    add(queue, "a", 5.0, 10)
    queue.take(5.0)
    add(queue, "b", 5.0)
    add(queue, "a", 5.9)
    assert keys(queue.take(6.0)) == "ab"


def test_a_crowd_cannot_make_others_wait_for_it(queue):
    add(queue, "a", 5.0, 30)
    add(queue, "b", 5.1, 2)
    order = [keys(queue.take(7.0)) for _ in range(4)]
    assert order == ["a" * 10, "bb", "a" * 10, "a" * 10]


def test_copies_count_once_and_go_together(queue):
    add(queue, "a", 5.0, 30, digest="same")
    assert queue.take(5.0) == []
    assert len(queue) == 30
    (entry,) = queue.take(6.0)
    assert len(entry.items) == 30
    assert len(queue) == 0


def test_copies_of_another_key_are_images_of_their_own(queue):
    add(queue, "a", 5.0, digest="same")
    add(queue, "b", 5.0, digest="same")
    assert keys(queue.take(6.0)) == "ab"


def test_what_was_removed_is_in_no_batch(queue):
    first, second = add(queue, "a", 5.0, 2)
    copy, original = add(queue, "b", 5.0, 2, digest="same")
    assert queue.remove(first)
    assert not queue.remove(first)
    assert queue.remove(original)
    batch = queue.take(6.0)
    assert [item for entry in batch for item in entry.items] == [second, copy]
    assert not queue.remove(second)


def test_more_sharing_images_than_fit_the_oldest_come_first(queue):
    for step, key in enumerate("abcdefghijklm"):
        add(queue, key, 5 + step / 100)
    assert keys(queue.take(5.2)) == "abcdefghij"
    assert len(queue) == 3


def test_keys_that_left_are_forgotten():
    queue = Forming(SETTINGS)
    for number in range(REMEMBERED + 100):
        add(queue, f"{number}", float(number), 2)
        queue.take(number + 1.0)
    assert len(queue._last) <= REMEMBERED + 1


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="least: expected at most max_batch = 10, got 11"):
        BatchSettings(max_batch=10, least=11)


def test_a_key_that_is_apart_shares_no_batch_however_few_its_images_are():
    apart = set()
    queue = Forming(SETTINGS, apart)
    apart.add("b")
    for key in "abc":
        add(queue, key, 0.0)
    taken = [keys(queue.take(2.0)), keys(queue.take(2.0))]
    assert sorted(taken) == ["ac", "b"]


class Eager(Forming):
    """Looks anew at who shares with whom, whenever it is asked."""

    def take(self, now):
        self._due = -inf
        return super().take(now)

    def wake(self, now):
        self._due = -inf
        return super().wake(now)


def batches(queue, events):
    """Which images are taken together, and when, while images come (one of a key after a gap) and others leave."""
    taken, waiting, now = [], [], 0.0
    for number, (gap, key, leaver) in enumerate([*events, (3.0, "", None)]):
        end, asked = now + gap, -inf
        while asked < end:
            asked = now
            while batch := queue.take(now):
                taken.append((now, [entry.number for entry in batch]))
            now = min(queue.wake(now), end)
        if leaver is not None and waiting:
            queue.remove(waiting.pop(leaver))
        if key:
            waiting.append(Item(number, key, None, (number,)))
            queue.add(waiting[-1], now)
    return taken


GAPS = st.sampled_from([0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 0.7])
EVENTS = st.lists(
    st.tuples(GAPS, st.sampled_from("aaabbcdefghij"), st.sampled_from([None] * 8 + [0, -1])), min_size=30, max_size=60
)


@given(EVENTS, st.sampled_from(["", "ab"]))
def test_batches_close_as_if_everything_was_looked_at_every_time(events, apart):
    assert batches(Forming(SETTINGS, apart), events) == batches(Eager(SETTINGS, apart), events)


def test_a_key_that_leaves_the_shared_batch_does_not_keep_it_waiting(queue):
    add(queue, "a", 0.0)
    add(queue, "c", 0.0)
    add(queue, "b", 0.4)
    assert queue.wake(0.4) == pytest.approx(0.7)
    add(queue, "b", 0.5)  # so fast that it will fill a batch of its own
    assert keys(queue.take(0.5)) == "ac"


def test_a_key_that_had_a_batch_of_its_own_is_waited_for_only_for_two_deadlines(queue):
    add(queue, "a", 0.0, 10)
    assert keys(queue.take(0.0)) == "a" * 10
    add(queue, "a", 1.8)
    add(queue, "b", 1.85)
    assert queue.wake(1.85) == 2.0
    assert queue.take(1.99) == []
    add(queue, "c", 1.9)
    assert keys(queue.take(2.5)) == "abc"

import random

from twoprong.serve.memory import LIMIT, REMEMBERED, Memory
from twoprong.serve.settings import ANONYMOUS


def fed(memory, key, looks):
    """How many images it takes until a key is watched, or None."""
    for count, one in enumerate(looks, 1):
        memory.heard([key], [one])
        if key in memory.watched:
            return count
    return None


def test_who_always_looks_attacked_is_watched_soon_and_forgiven_after_many_clean_images():
    memory = Memory(0.05)
    assert fed(memory, "a", [True] * 100) == 6  # log(10,000) / log(5), rounded up
    memory.heard(["a", "b"] * 30, [False] * 60)
    assert memory.watched == {"a"}
    memory.heard(["a", "b"] * 30, [False] * 60)
    assert memory.watched == set()


def test_guilt_has_an_end():
    memory = Memory(0.05)
    fed(memory, "a", [True])
    memory.heard(["a"] * 10_000, [True] * 10_000)
    memory.heard(["a"] * 100, [False] * 100)
    assert memory.watched == set()


def test_one_in_five_attacked_is_enough():
    draw = random.Random(0)
    assert fed(Memory(0.05), "a", (draw.random() < 0.24 for _ in range(1000))) is not None


def test_clean_keys_are_watched_as_rarely_as_promised():
    """On average after e^LIMIT = 10,000 images or more; the runs are cut off at 30,000."""
    lengths = []
    for seed in range(20):
        draw = random.Random(seed)
        lengths.append(fed(Memory(0.05), "a", (draw.random() < 0.05 for _ in range(30_000))) or 30_000)
    assert LIMIT > 9.2
    assert sum(lengths) / len(lengths) >= 10_000


def test_nobody_in_particular_is_not_watched_and_memory_is_bounded():
    memory = Memory(0.05)
    memory.heard([ANONYMOUS] * 100, [True] * 100)
    memory.heard(["bad"] * 10, [True] * 10)
    for number in range(2 * REMEMBERED):
        memory.heard([f"key {number}"], [True])
    assert memory.watched == {"bad"}
    assert len(memory._sums) <= REMEMBERED + 1

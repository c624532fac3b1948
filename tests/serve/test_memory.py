import itertools
import random

from twoprong.serve.memory import LIMIT, REMEMBERED, REPEATS, Memory
from twoprong.serve.settings import ANONYMOUS

NUMBERS = itertools.count()


def heard(memory, keys, looks):
    """Images that nobody sent before."""
    memory.heard(keys, [next(NUMBERS) for _ in keys], looks)


def fed(memory, key, looks):
    """How many images it takes until a key is watched, or None."""
    for count, one in enumerate(looks, 1):
        heard(memory, [key], [one])
        if key in memory.watched:
            return count
    return None


def test_who_always_looks_attacked_is_watched_soon_and_forgiven_after_many_clean_images():
    memory = Memory(0.05)
    assert fed(memory, "a", [True] * 100) == 6  # log(10,000) / log(5), rounded up
    heard(memory, ["a", "b"] * 30, [False] * 60)
    assert memory.watched == {"a"}
    heard(memory, ["a", "b"] * 30, [False] * 60)
    assert memory.watched == set()


def test_guilt_has_an_end():
    memory = Memory(0.05)
    fed(memory, "a", [True])
    heard(memory, ["a"] * 10_000, [True] * 10_000)
    heard(memory, ["a"] * 100, [False] * 100)
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
    heard(memory, [ANONYMOUS] * 100, [True] * 100)
    heard(memory, ["bad"] * 10, [True] * 10)
    for number in range(2 * REMEMBERED):
        heard(memory, [f"key {number}"], [True])
    assert memory.watched == {"bad"}
    assert len(memory._sums) <= REMEMBERED + 1


def test_one_image_that_is_sent_again_and_again_is_no_evidence():
    memory = Memory(0.05)
    for number in range(5):
        for _ in range(100):
            memory.heard(["a", "b"], [f"suspicious {number}", "suspicious 0"], [True, True])
    assert memory.watched == set()
    memory.heard(["a"], ["suspicious 5"], [True])  # the sixth that is another one
    assert memory.watched == {"a"}
    for _ in range(1000):
        memory.heard(["a"], ["clean"], [False])
    assert memory.watched == {"a"}
    heard(memory, ["a"] * 100, [False] * 100)
    assert memory.watched == set()


def test_repeats_do_not_hide_new_images():
    """An attacker sends one that is known to look clean between those that are new."""
    memory = Memory(0.05)
    for number in range(6):
        memory.heard(["a"] * 3, ["known", number, "known"], [False, True, False])
    assert memory.watched == {"a"}


def test_few_images_of_a_key_are_remembered_and_none_of_a_key_without_a_sum():
    memory = Memory(0.05)
    heard(memory, ["a"] * 10_000, [True] * 10_000)
    heard(memory, ["b"] * 10_000, [False] * 10_000)
    for number in range(2 * REMEMBERED):
        heard(memory, [f"key {number}"], [True])
    assert len(memory._images.pop("a")) == REPEATS
    assert "b" not in memory._images
    assert sum(map(len, memory._images.values())) <= REMEMBERED

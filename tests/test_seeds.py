import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import twoprong
from twoprong.seeds import WORDS, WORDS_AT, derive, from_system, generator, initialised

NAMES = [("splits",), ("held out",), ("kernel", 1), ("kernel", 2), ("kernel", 12), ("kernel",)]


def numbers(draw, count=64):
    return torch.rand(count, generator=draw, dtype=torch.float64)


def test_a_stream_is_a_function_of_seed_and_name_only():
    first = {name: numbers(generator(3, *name)) for name in NAMES}
    torch.manual_seed(99)
    torch.rand(7)
    second = {name: numbers(generator(3, *name)) for name in reversed(NAMES)}
    assert all(torch.equal(first[name], second[name]) for name in NAMES)


def test_drawing_from_a_stream_leaves_the_global_one_alone():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    numbers(generator(3, "splits"))
    assert torch.equal(torch.get_rng_state(), before)


def test_streams_drawn_from_in_turn_do_not_disturb_each_other():
    one, other = generator(3, "one"), generator(3, "other")
    turns = [(numbers(one, 1), numbers(other, 1)) for _ in range(10)]
    for name, drawn in zip(("one", "other"), zip(*turns, strict=True), strict=True):
        assert torch.equal(
            torch.cat(drawn), torch.cat([numbers(draw, 1) for draw in [generator(3, name)] for _ in range(10)])
        )


def test_other_names_and_other_seeds_give_other_streams():
    streams = [numbers(generator(seed, *name)) for seed in (0, 1) for name in NAMES]
    for one, other in itertools.combinations(streams, 2):
        assert not torch.isin(one, other).any()


def test_derived_seeds_fit_a_generator_and_spread_over_its_range():
    seeds = [derive(seed, "step") for seed in range(1000)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # The top bit is a fair coin: 1,000 throws stay within five standard deviations (5 x 15.8) of 500.
    assert abs(sum(seed >> 62 for seed in seeds) - 500) < 80


def test_initialised_seeds_the_block_and_restores_the_global_stream():
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    with initialised(0, "network"):
        inside = torch.rand(4)
    assert torch.equal(torch.rand(4), expected)
    torch.manual_seed(6)
    with initialised(0, "network"):
        assert torch.equal(torch.rand(4), inside)
    with initialised(0, "another"):
        assert not torch.equal(torch.rand(4), inside)
    with initialised(1, "network"):
        assert not torch.equal(torch.rand(4), inside)


def test_initialised_restores_the_global_stream_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shapes"), initialised(0, "network"):
        torch.rand(2, 3) @ torch.rand(2, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_twister_stands_where_we_think_in_a_cpu_generators_state():
    """numpy's twister, written into torch's state, draws numpy's numbers; and the state comes back as it was given."""
    other = np.random.MT19937(7)
    given = other.state
    given["state"]["pos"] = WORDS  # no word is used yet
    other.state = given
    words = given["state"]["key"].astype(np.int64)
    made = torch.Generator().manual_seed(0)
    state = made.get_state()
    state[WORDS_AT : WORDS_AT + 8 * WORDS].view(torch.int64).copy_(torch.from_numpy(words))
    made.set_state(state)
    assert torch.equal(made.get_state(), state)
    drawn = torch.randint(0, 2**16, (2000,), generator=made)
    assert drawn.tolist() == [int(word) % 2**16 for word in other.random_raw(2000)]


def words_of(draw):
    return draw.get_state()[WORDS_AT : WORDS_AT + 8 * WORDS].view(torch.int64).numpy()


def test_the_systems_generator_is_not_one_of_the_streams_that_32_bits_can_give():
    """A seeded twister's words follow from the first (Knuth's recurrence); here each is drawn for itself."""

    def following(words):
        before = words[:-1].astype(np.uint64)
        return (1812433253 * (before ^ (before >> 30)) + np.arange(1, WORDS, dtype=np.uint64)) & 0xFFFFFFFF

    seeded = words_of(torch.Generator().manual_seed(12345))
    assert np.array_equal(following(seeded), seeded[1:])
    drawn = words_of(from_system())
    assert (following(drawn) == drawn[1:]).sum() <= 1
    assert len(set(drawn.tolist())) > WORDS - 3
    assert drawn.min() >= 0
    assert drawn.max() < 2**32
    # Every bit of 624 words is a fair coin but the one that is set: within six standard deviations (6 x 12.5) of 312.
    ones = [(drawn[1:] >> bit & 1).sum() for bit in range(32)]
    assert all(abs(count - 312) < 75 for count in ones)


def test_the_systems_generators_differ_and_leave_the_global_stream_alone():
    before = torch.get_rng_state()
    streams = [numbers(from_system()) for _ in range(4)]
    assert all(not torch.isin(one, other).any() for one, other in itertools.combinations(streams, 2))
    assert all(0 <= stream.min() < stream.max() < 1 for stream in streams)
    assert torch.equal(torch.get_rng_state(), before)


def asked_for():
    """The names of all streams, read from the calls in the source; "..." stands for what is counted or named there."""
    found = set()
    for file in Path(twoprong.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
            if called in ("generator", "derive", "initialised") and file.name != "seeds.py":
                parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.args[1:]]
                found.add(tuple(parts[: parts.index("...") + 1] if "..." in parts else parts))
    return found


def test_the_streams_of_one_run_are_distinct():
    """In the 32 bits that a CPU's generator uses, for every name with up to 50 numbers where it counts something."""
    streams = asked_for()
    assert {("splits",), ("kernel",), ("attack", "..."), ("sanity", "noise")} <= streams
    names = {(*name[:-1], number) if name[-1] == "..." else name for name in streams for number in range(50)}
    for seed in range(10):
        assert len({derive(seed, *name) & 0xFFFFFFFF for name in names}) == len(names)

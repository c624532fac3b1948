import itertools

import pytest
import torch

from twoprong.seeds import derive, generator, initialised

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

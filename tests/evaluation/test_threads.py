import pytest
import torch

from twoprong.evaluation.threads import sensible, threads


@pytest.mark.parametrize("count", [1, 2])
def test_the_number_holds_in_the_block_and_is_put_back(count):
    before = torch.get_num_threads()
    with threads(count):
        assert torch.get_num_threads() == count
    assert torch.get_num_threads() == before


def test_none_leaves_it_alone():
    before = torch.get_num_threads()
    with threads(None):
        assert torch.get_num_threads() == before


@pytest.mark.parametrize(("side", "size", "expected"), [(8, 100, 1), (32, 10, 1), (32, 100, None), (224, 2, None)])
def test_small_batches_get_one_thread(side, size, expected):
    assert sensible(torch.zeros(1, 3, side, side), size) == expected

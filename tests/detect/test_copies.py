import pytest
import torch

from twoprong.detect.copies import copies, distinct
from twoprong.seeds import generator


def images(n, dtype=torch.float32):
    return torch.rand(n, 3, 4, 4, generator=generator(0, "images"), dtype=dtype)


def test_a_batch_without_copies_is_the_very_same():
    batch = images(9).requires_grad_()
    assert copies(batch) is None
    assert distinct(batch) is batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_image_once_in_the_order_of_the_batch(dtype):
    different, index = images(5, dtype), torch.tensor([3, 0, 3, 4, 0, 0, 1, 2])
    batch = different[index].to(memory_format=torch.channels_last)
    first, back = copies(batch)
    assert first.tolist() == [0, 1, 3, 6, 7]
    assert torch.equal(distinct(batch), different[[3, 0, 4, 1, 2]])
    assert torch.equal(distinct(batch)[back], batch)


def test_one_image_only():
    assert len(distinct(images(1).expand(100, 3, 4, 4))) == 1


def test_the_smallest_difference_makes_another_image():
    one = images(1)
    other = one.clone()
    other[0, 0, 0, 0] = torch.nextafter(one[0, 0, 0, 0], torch.ones(()))
    assert len(distinct(torch.cat([one, other, one]))) == 2


def test_images_of_one_sum_are_told_apart():
    """Sums of bits only say where to look: turned round, an image has the same."""
    one = images(1)
    assert copies(torch.cat([one, one.flip(3)])) is None
    assert len(distinct(torch.cat([one, one.flip(3), one]))) == 2

import pytest
import torch

from twoprong.robust.augment import AUGMENTATIONS, CUT, ERASED, JITTER, erased, mirrored, recoloured, shifted_crop
from twoprong.seeds import generator


def some(n=200, side=16):
    return torch.rand(n, 3, side, side, generator=generator(0, "augment")) * 0.8 + 0.1  # no pixel is black by itself


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_augmentation_keeps_shape_and_range_and_repeats_under_a_seed(name):
    images = some()
    one, again, other = (AUGMENTATIONS[name](images, generator(seed, "draw")) for seed in (0, 0, 1))
    assert one.shape == images.shape
    assert one.min() >= 0
    assert one.max() <= 1
    assert torch.equal(one, again)
    assert torch.equal(one, other) == (name == "none")
    assert torch.equal(images, some())  # the originals are left alone


def test_a_shifted_crop_is_a_rectangle_of_the_image_put_down_elsewhere():
    images = some(50)
    for image, moved in zip(images, shifted_crop(images, generator(0, "crop")), strict=True):
        there = (moved > 0).any(0)
        rows, columns = there.any(1).nonzero()[:, 0], there.any(0).nonzero()[:, 0]
        top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
        assert there[top:bottom, left:right].all()
        assert there.sum() == (bottom - top) * (right - left)
        assert min(bottom - top, right - left) >= 16 - int(CUT * 16)
        piece = moved[:, top:bottom, left:right]
        windows = image.unfold(1, piece.shape[1], 1).unfold(2, piece.shape[2], 1)
        assert (windows == piece[:, None, None]).flatten(3).all(3).all(0).any()


def test_half_of_the_images_are_mirrored():
    images = some(1000)
    found = mirrored(images, generator(0, "mirror"))
    same, flipped = ((found == other).flatten(1).all(1) for other in (images, images.flip(3)))
    assert (same ^ flipped).all()
    assert 0.44 < flipped.double().mean() < 0.56  # 500 ± 3.8 standard deviations


def test_an_erased_patch_is_one_rectangle_of_a_limited_area():
    for image in erased(some(100), generator(0, "erase")):
        gone = (image == 0).all(0)
        rows, columns = gone.any(1), gone.any(0)
        assert gone.sum() == rows.sum() * columns.sum()
        assert 0.5 * ERASED[0] * 256 <= gone.sum() <= 1.3 * ERASED[1] * 256  # sides are rounded to whole pixels


def test_colours_change_a_little_and_shapes_do_not():
    images = torch.full((100, 3, 8, 8), 0.5)
    found = recoloured(images, generator(0, "colour"))
    assert (found == found[:, :1, :1, :1]).all()  # a grey area stays a grey area
    change = found[:, 0, 0, 0] / 0.5 - 1
    assert 0.1 < change.abs().max() <= JITTER + 1e-5

import math

import pytest
import torch
import torch.nn.functional as F

from twoprong.errors import InputError
from twoprong.evaluation.detector.corruptions import CORRUPTIONS, STRENGTHS
from twoprong.seeds import generator


@pytest.fixture(params=[1, 3], ids=["grey", "colour"])
def images(request):
    """Smooth pictures with an edge: coarse random fields, enlarged, in both halves of the range."""
    coarse = torch.rand(6, request.param, 3, 4, generator=generator(0, "pictures"))
    smooth = F.interpolate(coarse, size=(20, 24), mode="bilinear", align_corners=True)
    smooth[:, :, :, 12:] = 1 - smooth[:, :, :, 12:]
    return smooth


@pytest.fixture(params=sorted(CORRUPTIONS))
def name(request):
    return request.param


def test_every_kind_has_three_strengths():
    assert CORRUPTIONS.keys() == STRENGTHS.keys()
    assert all(len(strengths) == 3 for strengths in STRENGTHS.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_stay_images_and_a_generator_repeats_itself(name, images, dtype):
    images = images.to(dtype)
    original = images.clone()
    for strength in STRENGTHS[name]:
        changed = CORRUPTIONS[name](images, strength, generator(1, "noise"))
        assert (changed.shape, changed.dtype, changed.device) == (images.shape, dtype, images.device)
        assert 0 <= changed.min() <= changed.max() <= 1
        assert torch.equal(changed, CORRUPTIONS[name](images, strength, generator(1, "noise")))
        assert torch.equal(images, original)


def test_stronger_is_further_away(name, images):
    distances = [0.0]
    for strength in STRENGTHS[name]:
        distances.append((CORRUPTIONS[name](images, strength, generator(1, "noise")) - images).square().mean().sqrt().item())
    assert distances == sorted(set(distances))
    assert distances[-1] < 0.3


@pytest.mark.parametrize(
    ("name", "strength", "tolerance"),
    [("blur", 0, 0), ("blur", 1e-30, 1e-6), ("jpeg", 100, 0.02), ("brightness", 0, 0), ("noise", 0, 0)],
)
def test_the_weakest_changes_nothing(name, strength, tolerance, images):
    changed = CORRUPTIONS[name](images, strength, generator(1, "noise"))
    assert (changed - images).abs().mean() <= tolerance


def test_an_image_is_changed_alike_alone_and_in_a_batch(images):
    for name in ("blur", "jpeg", "brightness"):
        alone = torch.cat([CORRUPTIONS[name](image[None], STRENGTHS[name][1], None) for image in images])
        assert torch.allclose(alone, CORRUPTIONS[name](images, STRENGTHS[name][1], None), atol=1e-6)


def test_blur_is_a_gaussian_of_the_given_width():
    point = torch.zeros(1, 1, 41, 41)
    point[0, 0, 20, 20] = 1
    spread = CORRUPTIONS["blur"](point, 2.0, None)[0, 0].double()
    offsets = torch.arange(-20, 21, dtype=torch.float64)
    for axis in (0, 1):
        assert (spread.sum(axis) * offsets**2).sum().sqrt().item() == pytest.approx(2.0, rel=0.02)  # cut off at 3 sigma
    assert spread.sum().item() == pytest.approx(1)
    flat = torch.full((1, 3, 8, 8), 0.7)
    assert torch.allclose(CORRUPTIONS["blur"](flat, 3.0, None), flat)  # wider than the image, and no dark border


def test_brightness_and_noise_are_what_they_say():
    grey = torch.full((20, 1, 16, 16), 0.5)
    assert torch.allclose(CORRUPTIONS["brightness"](grey, -0.2, None), grey - 0.2)
    assert CORRUPTIONS["brightness"](grey, 0.9, None).max() == 1
    noisy = CORRUPTIONS["noise"](grey, 0.05, generator(0, "noise"))
    assert noisy.std().item() == pytest.approx(0.05, rel=4 / math.sqrt(2 * grey.numel()))
    assert not torch.equal(noisy, CORRUPTIONS["noise"](grey, 0.05, generator(1, "noise")))


@pytest.mark.parametrize(
    ("name", "strength"),
    [
        ("blur", -1),
        ("blur", math.inf),
        ("jpeg", 0),
        ("jpeg", 101),
        ("brightness", 1.5),
        ("noise", -0.1),
        ("noise", math.nan),
    ],
)
def test_nonsensical_strengths_are_refused(name, strength, images):
    with pytest.raises(InputError, match=rf"^{name}: expected a strength from"):
        CORRUPTIONS[name](images, strength, None)

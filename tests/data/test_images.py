import numpy as np
import pytest
import torch
from PIL import Image

from twoprong.data.images import check_images, check_layout
from twoprong.errors import InputError


def batch(count=4, channels=3, size=8, dtype=torch.float32):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0)).to(dtype)


def pixels(count=4, height=6, width=8):
    """Bytes, channels last, as files and cameras give them."""
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_good_images_pass_with_their_values(given, expected, channels):
    images = batch(channels=channels, dtype=given)
    checked = check_images(images)
    assert checked.dtype == expected
    assert torch.equal(checked, images.to(expected))


def test_the_ends_of_the_range_are_inside():
    images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    assert torch.equal(check_images(images), images)


def test_checking_keeps_the_gradient():
    images = batch().requires_grad_()
    check_images(images).sum().backward()
    assert torch.equal(images.grad, torch.ones_like(images))


BROKEN = {
    "a path": ("cat.png", ["expected a tensor, an array, a picture or a list of them, got str"]),
    "nothing": ([], ["got an empty list"]),
    "a list of words": (["cat.png"], ["expected item 0 to be one image", "got str"]),
    "words": (np.array([["a"]]), ["expected an array of numbers, got <U1"]),
    "differing sizes": ([torch.zeros(3, 8, 8), torch.zeros(3, 8, 9)], ["one size, got (3, 8, 9) in item 1 and (3, 8, 8)"]),
    "a deep picture": ([Image.fromarray(np.zeros((4, 4), np.uint16))], ["item 0 cannot be read", "16-bit"]),
    "one image": (torch.zeros(3, 8, 8), ["got shape (3, 8, 8)", "images[None]"]),
    "flat": (torch.zeros(2, 64), ["4 dimensions", "got shape (2, 64)"]),
    "four channels": (torch.zeros(2, 4, 8, 8), ["expected 1 or 3 channels", "got 4"]),
    "bytes in integers": (torch.full((2, 3, 8, 8), 200), ["got torch.int64", "images.to(torch.uint8)"]),
    "two bytes": (np.full((2, 3, 8, 8), 999, np.uint16), ["got torch.uint16", "images.float(), scaled to [0, 1]"]),
    "truth": (torch.zeros(2, 3, 8, 8, dtype=torch.bool), ["got torch.bool"]),
    "integers": (torch.zeros(2, 3, 8, 8, dtype=torch.int64), ["got torch.int64", "images.float()"]),
    "empty": (torch.zeros(0, 3, 8, 8), ["at least one image", "(0, 3, 8, 8)"]),
    "0 to 255": (
        torch.tensor([0.0, 255.0]).view(2, 1, 1, 1),
        ["images: expected values in [0, 1], got [0, 255]; divide by 255 and keep normalisation inside the classifier"],
    ),
    "normalised": (torch.tensor([-2.0, 2.5]).view(2, 1, 1, 1), ["got [-2, 2.5]", "undo the normalisation"]),
    "rounding": (torch.tensor([0.5, 1.0000001]).view(2, 1, 1, 1), ["got [0.5, 1.00000012]", "images.clip(0, 1)"]),
    "NaN": (torch.tensor([0.5, float("nan")]).view(2, 1, 1, 1), ["finite", "got NaN first in image 1 of 2"]),
    "infinity": (torch.tensor([0.5, float("inf")]).view(2, 1, 1, 1), ["finite", "got infinity first in image 1 of 2"]),
    "minus infinity": (torch.tensor([-float("inf"), 0.5]).view(2, 1, 1, 1), ["got infinity first in image 0 of 2"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_images_are_refused_with_the_fix(name):
    images, parts = BROKEN[name]
    with pytest.raises(InputError) as caught:
        check_images(images)
    assert [part for part in parts if part not in str(caught.value)] == []


PIXELS = pixels()
WAYS = {
    "bytes": torch.from_numpy(PIXELS).permute(0, 3, 1, 2),
    "bytes, channels last": torch.from_numpy(PIXELS),
    "array": PIXELS.transpose(0, 3, 1, 2),
    "array, channels last": PIXELS,
    "array of the other byte order": (PIXELS / np.float32(255)).astype(">f4"),
    "array that may not be written": np.frombuffer(PIXELS.tobytes(), np.uint8).reshape(PIXELS.shape),
    "floats, channels last": torch.from_numpy(PIXELS).float() / 255,
    "list of tensors": list(torch.from_numpy(PIXELS).permute(0, 3, 1, 2)),
    "tuple of arrays": tuple(PIXELS),
    "pictures": [Image.fromarray(one) for one in PIXELS],
    "a bit of everything": [
        Image.fromarray(PIXELS[0]), PIXELS[1], torch.from_numpy(PIXELS[2]).permute(2, 0, 1).float() / 255, PIXELS[3],
    ],
}  # fmt: skip


@pytest.mark.parametrize("shape", [None, (3, 6, 8)])
@pytest.mark.parametrize("way", WAYS)
def test_whatever_images_come_in_they_are_the_same_batch(way, shape):
    checked = check_images(WAYS[way], shape)
    assert checked.dtype == torch.float32
    assert torch.equal(checked, torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float() / 255)


def test_gray_pictures_have_one_channel_and_three_where_colours_are_expected_or_beside_them():
    gray, colour = Image.fromarray(PIXELS[0, :, :, 0]), Image.fromarray(PIXELS[1])
    expected = torch.from_numpy(PIXELS[0, :, :, 0]).float() / 255
    assert torch.equal(check_images([gray, PIXELS[0, :, :, 0]]), expected.expand(2, 1, 6, 8))
    assert torch.equal(check_images(gray), expected[None, None])
    assert torch.equal(check_images([gray], (3, 6, 8)), expected.expand(1, 3, 6, 8))
    assert torch.equal(check_images([gray, colour])[0], expected.expand(3, 6, 8))


def test_a_picture_in_memory_is_read_like_one_in_a_folder():
    sheer = Image.new("RGBA", (4, 6), (255, 0, 0, 0))
    turned = Image.fromarray(PIXELS[0])
    turned.getexif()[0x0112] = 6  # to be turned a quarter clockwise
    assert check_images([sheer]).min() == 1
    assert torch.equal(check_images([turned])[0], check_images([PIXELS[0]])[0].rot90(-1, (1, 2)))
    assert turned.size == (8, 6)


def test_channels_are_moved_only_where_nothing_else_can_be_meant():
    ambiguous = torch.rand(2, 3, 5, 3)
    assert torch.equal(check_images(ambiguous), ambiguous)
    assert torch.equal(check_images(ambiguous, (3, 5, 3)), ambiguous)
    assert torch.equal(check_images(ambiguous, (3, 3, 5)), ambiguous.permute(0, 3, 1, 2))
    gray = torch.rand(2, 5, 6, 1)
    assert torch.equal(check_images(gray), gray.permute(0, 3, 1, 2))


def test_all_that_is_wrong_is_named_at_once_each_with_its_fix():
    images = torch.full((2, 4, 9, 9), 255.0)
    images[1, 0, 0, 0] = torch.nan
    with pytest.raises(InputError) as caught:
        check_images(images.permute(0, 2, 3, 1).numpy(), (3, 8, 8))
    first, *rest = str(caught.value).splitlines()
    assert first == "images: 3 problems"
    assert [line.split(", got")[0].strip() for line in rest] == [
        "expected (channels, height, width) = (3, 8, 8), as this defence was fitted on",
        "expected finite values in [0, 1]",
        "expected values in [0, 1]",
    ]
    assert all(fix in line for fix, line in zip(["resize", "leave out such images", "divide by 255"], rest, strict=True))


def test_a_wrong_type_and_a_wrong_layout_are_named_together():
    with pytest.raises(InputError, match=r"2 problems\n  expected a batch .*\n  expected floats .*got torch.int64"):
        check_images(torch.zeros(3, 8, 8, dtype=torch.long))


def test_a_float_batch_is_passed_on_untouched_and_unread():
    images = torch.full((2, 3, 4, 4), torch.nan)
    assert check_layout(images) is images
    assert check_layout(images, (3, 4, 4)) is images
    on_meta = torch.zeros(2, 3, 4, 4, device="meta")  # nobody can read its values
    assert check_layout(on_meta, (3, 4, 4)) is on_meta
    in_bytes = check_layout(torch.zeros(2, 4, 4, 3, device="meta", dtype=torch.uint8), (3, 4, 4))
    assert (in_bytes.dtype, tuple(in_bytes.shape)) == (torch.float32, (2, 3, 4, 4))

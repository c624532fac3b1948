import logging
import os
import shutil
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from twoprong.data.folder import has_test, load_folder
from twoprong.errors import DataError, InputError


def picture(path, size=(6, 4), value=None, mode="RGB", **options):
    """Write a picture of one colour, black if none is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if value is not None else 0).save(path, **options)
    return path


def pets(root, count=10, **options):
    for name in ("cat", "dog"):
        for index in range(count):
            shade = index * 20 + (name == "dog")
            picture(root / name / f"{index}.png", value=(shade, shade, shade), **options)
    return root


def load(root, image_size=None, strict=False):
    return load_folder(root, image_size, strict)


def shades(part):
    """Which pictures of `pets` these are."""
    return sorted((part.images[:, 0, 0, 0] * 255).round().int().tolist())


def test_a_fifth_of_each_class_is_held_out(tmp_path):
    data = load(pets(tmp_path))
    assert data.classes == ("cat", "dog")
    assert data.name == tmp_path.name
    assert data.train.labels.tolist() == [0] * 8 + [1] * 8
    assert data.test.labels.tolist() == [0] * 2 + [1] * 2
    assert data.train.images.shape == (16, 3, 4, 6)
    assert data.train.images.dtype == torch.float32
    assert sorted(shades(data.train) + shades(data.test)) == sorted(i * 20 + dog for i in range(10) for dog in (0, 1))
    for part in (data.train, data.test):
        assert [shade % 2 for shade in (part.images[:, 0, 0, 0] * 255).round().int().tolist()] == part.labels.tolist()


def test_the_held_out_fifth_is_always_the_same(tmp_path):
    pets(tmp_path)
    first = shades(load(tmp_path).test)
    torch.manual_seed(9)
    assert shades(load(tmp_path).test) == first


def test_train_and_test_folders_are_used_as_they_are(tmp_path):
    pets(tmp_path / "train", count=3)
    pets(tmp_path / "test", count=1)
    data = load(tmp_path)
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.test)) == (6, 2)
    assert shades(data.test) == [0, 1]


def test_only_a_part_of_its_own_is_called_a_test(tmp_path):
    for name in ("train", "test", "car"):
        picture(tmp_path / "classes" / name / "0.png")
    assert not has_test(tmp_path / "classes")
    for part in ("train", "val", "test"):
        pets(tmp_path / "parts" / part, count=2)
        assert has_test(tmp_path / "parts") is (part == "test")


def test_all_three_parts_are_read_where_the_whole_is_asked_for(tmp_path):
    for part, count in (("train", 3), ("test", 1), ("val", 2)):
        pets(tmp_path / part, count=count)
    assert (len(load(tmp_path).train), len(load(tmp_path).test)) == (6, 2)
    whole = load_folder(tmp_path, None, False, whole=True)
    assert (len(whole.train), whole.test.labels.tolist()) == (6, [0] * 3 + [1] * 3)
    picture(tmp_path / "val" / "emu" / "0.png")
    with pytest.raises(DataError, match=r"same classes in train and val.*: emu;"):
        load_folder(tmp_path, None, False, whole=True)
    shutil.rmtree(tmp_path / "test")
    shutil.rmtree(tmp_path / "val" / "emu")
    assert len(load_folder(tmp_path, None, False, whole=True).test) == 4  # val stands for the test, once


def test_train_and_test_may_be_names_of_classes(tmp_path):
    for name in ("train", "test", "tram"):
        for index in range(2):
            picture(tmp_path / name / f"{index}.png")
    assert load(tmp_path).classes == ("test", "train", "tram")


def test_the_classes_of_train_and_test_must_agree(tmp_path):
    pets(tmp_path / "train", count=1)
    pets(tmp_path / "test", count=1)
    picture(tmp_path / "test" / "emu" / "0.png")
    with pytest.raises(DataError, match=r"same classes in train and test.*: emu;"):
        load(tmp_path)


def test_formats_depths_and_what_is_ignored(tmp_path):
    pets(tmp_path, count=2)
    picture(tmp_path / "cat" / "deep" / "er" / "a.JPG")
    picture(tmp_path / "cat" / "b.jpeg")
    picture(tmp_path / "cat" / "c.WebP", format="WEBP")
    picture(tmp_path / "cat" / ".hidden.png", size=(1, 1))
    picture(tmp_path / "cat" / ".cache" / "x.png", size=(1, 1))
    picture(tmp_path / "cat" / "d.bmp", size=(1, 1))
    picture(tmp_path / ".git" / "x.png", size=(1, 1))
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / "README.md").write_text("no class")
    data = load(tmp_path, strict=True)
    assert data.classes == ("cat", "dog")
    assert len(data.train) + len(data.test) == 5 + 2


def test_values_are_those_of_the_file(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    for part in ("train", "test"):
        pets(tmp_path / part, count=1)
    Image.fromarray(pixels).save(tmp_path / "train" / "dog" / "0.png")
    assert torch.equal(load(tmp_path).train.images[1], torch.from_numpy(pixels).permute(2, 0, 1).float() / 255)


def test_grayscale_only_if_all_are(tmp_path):
    for part in ("train", "test"):
        picture(tmp_path / part / "a" / "0.png", mode="L", value=51)
        picture(tmp_path / part / "b" / "0.png", mode="1", value=1)
    data = load(tmp_path)
    assert data.train.images.shape == (2, 1, 4, 6)
    assert torch.equal(data.train.images[:, 0, 0, 0], torch.tensor([0.2, 1.0]))

    picture(tmp_path / "test" / "b" / "1.png", value=(255, 0, 0))
    data = load(tmp_path)
    assert torch.equal(data.train.images[0, :, 0, 0], torch.tensor([0.2, 0.2, 0.2]))
    assert data.test.images[-1, :, 0, 0].tolist() == [1, 0, 0]


def test_transparency_is_shown_on_white_and_palettes_become_colours(tmp_path):
    for part in ("train", "test"):
        picture(tmp_path / part / "a" / "0.png", mode="RGBA", value=(255, 0, 0, 0))
        picture(tmp_path / part / "a" / "1.png", mode="RGBA", value=(255, 0, 0, 255))
        picture(tmp_path / part / "b" / "0.png", mode="LA", value=(0, 0))
        palette = Image.new("P", (6, 4), 1)
        palette.putpalette([0, 0, 0, 0, 255, 0])
        palette.save(tmp_path / part / "b" / "1.png")
    assert load(tmp_path).train.images[:, :, 0, 0].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 1], [0, 1, 0]]


def test_exif_orientation_is_applied(tmp_path):
    pets(tmp_path / "train", count=1)
    pets(tmp_path / "test", count=1)
    sideways = Image.new("RGB", (4, 6))
    sideways.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise: the first pixel goes to the upper right
    sideways.save(tmp_path / "train" / "cat" / "0.png", exif=exif)
    image = load(tmp_path).train.images[0]
    assert image.shape == (3, 4, 6)
    assert image[0].nonzero().tolist() == [[0, 5]]


def test_differing_sizes_are_refused_with_examples(tmp_path):
    pets(tmp_path)
    picture(tmp_path / "dog" / "wide.png", size=(9, 4))
    with pytest.raises(DataError, match=r"cat.0\.png is 6x4, .*wide\.png is 9x4; pass --image-size N"):
        load(tmp_path)


def test_image_size_resizes_the_shorter_side_and_crops_the_centre(tmp_path):
    for part in ("train", "test"):
        picture(tmp_path / part / "a" / "0.png", size=(40, 40), value=(10, 20, 30))
        picture(tmp_path / part / "b" / "0.png", size=(40, 40), value=(10, 20, 30))
    wide = np.zeros((16, 64, 3), np.uint8)
    wide[:, 24:40] = 255  # the central square
    Image.fromarray(wide).save(tmp_path / "train" / "a" / "0.png")
    checkers = (np.indices((32, 32)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(np.stack([checkers] * 3, -1)).save(tmp_path / "train" / "b" / "0.png")
    images = load(tmp_path, image_size=8).train.images
    assert images.shape == (2, 3, 8, 8)
    assert images[0, :, 2:6, 2:6].min() == 1  # a squeezed picture would show the black sides here
    assert images[0].mean() > 0.9
    assert (images[1] - 0.5).abs().max() < 0.1  # without antialiasing single black or white pixels would be picked


def test_image_size_must_be_positive(tmp_path):
    with pytest.raises(InputError, match="expected 1 pixel or more, got 0"):
        load(pets(tmp_path), image_size=0)


def bomb():
    """A small PNG that claims to be 30000 by 30000 pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def truncated_jpeg(folder):
    noise = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    path = folder / "whole.jpg"
    Image.fromarray(noise).save(path)
    content = path.read_bytes()
    path.unlink()
    return content[:-30]


@pytest.fixture
def damaged(tmp_path):
    """Ten good cats and dogs each, and five files among the dogs that no one can use."""
    pets(tmp_path)
    (tmp_path / "dog" / "a-empty.png").touch()
    (tmp_path / "dog" / "b-bomb.png").write_bytes(bomb())
    (tmp_path / "dog" / "c-cut.jpg").write_bytes(truncated_jpeg(tmp_path))
    Image.fromarray(np.zeros((4, 6), np.uint16)).save(tmp_path / "dog" / "d-deep.png")
    (tmp_path / "dog" / "e-text.webp").write_text("no picture")
    return tmp_path


def test_unreadable_pictures_are_named_and_left_out(damaged, caplog):
    with caplog.at_level(logging.WARNING, logger="twoprong"):
        data = load(damaged)
    assert len(data.train) + len(data.test) == 20
    messages = [record.getMessage() for record in caplog.records if record.name == "twoprong"]
    assert len(messages) == 6
    for name, reason, message in zip(
        ["a-empty.png", "b-bomb.png", "c-cut.jpg", "d-deep.png", "e-text.webp"],
        ["cannot identify", "decompression bomb", "truncated", "16-bit or float pixels, mode I;16", "cannot identify"],
        messages[:-1],
        strict=True,
    ):
        assert str(damaged / "dog" / name) in message
        assert reason in message
    assert "left out 5 pictures" in messages[-1]


def test_strict_refuses_unreadable_pictures(damaged):
    with pytest.raises(DataError, match=r"a-empty\.png: cannot be read .*; 5 pictures unreadable in all"):
        load(damaged, strict=True)


def test_no_warning_without_a_reason(tmp_path, caplog):
    load(pets(tmp_path))
    assert not caplog.records


def test_too_few_classes_or_pictures_are_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere: expected a folder with one sub-folder per class"):
        load(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"two or more classes, got no sub-folder"):
        load(tmp_path)
    picture(tmp_path / "cat" / "0.png")
    with pytest.raises(DataError, match=r"two or more classes, got cat;"):
        load(tmp_path)
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match=r"dog: expected pictures \(\.jpg.*got none"):
        load(tmp_path)
    picture(tmp_path / "dog" / "0.png")
    with pytest.raises(DataError, match=r"cat: expected 2 or more readable pictures \(one is held out\), got 1"):
        load(tmp_path)


def test_a_class_with_nothing_readable_is_refused(tmp_path):
    pets(tmp_path / "train", count=1)
    pets(tmp_path / "test", count=1)
    (tmp_path / "test" / "dog" / "0.png").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"test.dog: expected 1 or more readable pictures, got 0"):
        load(tmp_path)


def test_a_class_whose_name_is_no_utf8_is_refused_at_the_start(tmp_path):
    pets(tmp_path, count=2)
    os.mkdir(os.fsencode(tmp_path) + b"/caf\xe9")  # Latin-1
    (tmp_path / "cat" / "broken.png").write_bytes(b"would be warned of if pictures were read")
    with pytest.raises(DataError, match=r"caf\\xe9': expected a folder's name in UTF-8; rename it") as caught:
        load(tmp_path)
    assert str(caught.value).isprintable()


def test_a_pipe_named_like_a_picture_is_not_waited_for(tmp_path, caplog):
    pets(tmp_path, count=2)
    os.mkfifo(tmp_path / "cat" / "x.png")
    assert len(load(tmp_path).train) == 2
    assert "x.png: left out, cannot be read (not a regular file)" in caplog.text

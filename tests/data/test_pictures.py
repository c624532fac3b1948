import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from twoprong.data import pictures
from twoprong.data.pictures import SCANS, decode_picture, is_picture, open_picture, picture_bytes, read_picture


def png(path, width, height, depth, colour, rows):
    """A PNG as Pillow does not write it: `colour` is 0 gray, 2 RGB, 4 gray and alpha, 6 RGB and alpha."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_are_refused_in_every_kind_of_picture(tmp_path, colour, channels):
    deep = png(tmp_path / "deep.png", 3, 2, 16, colour, [b"\x12\x34" * 3 * channels] * 2)
    plain = png(tmp_path / "plain.png", 3, 2, 8, colour, [b"\x12" * 3 * channels] * 2)
    assert read_picture(plain, None).shape[:2] == (2, 3)
    with pytest.raises(ValueError, match=r"16-bit or float pixels.*save it with 8 bits"):
        read_picture(deep, None)
    with Image.open(deep) as opened, pytest.raises(ValueError, match="16-bit or float pixels"):
        picture_bytes(opened)


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path):
    """13,000 x 13,000 transparent pixels took 2.3 GB; here there is nothing to decode but the claim."""
    claimed = png(tmp_path / "large.png", 13000, 13000, 8, 6, [])
    with pytest.raises(ValueError, match="13000 x 13000 pixels, expected at most 64,000,000; make it smaller"):
        read_picture(claimed, 32)


def test_a_large_jpeg_is_decoded_small_where_a_small_one_is_wanted(tmp_path, monkeypatch):
    path = tmp_path / "photo.jpg"
    Image.new("RGB", (640, 480), (200, 100, 50)).save(path)
    usual = read_picture(path, 16)
    monkeypatch.setattr(pictures, "LIMIT", 640 * 480 // 4)
    assert np.abs(read_picture(path, 16).astype(int) - usual).max() <= 2
    with pytest.raises(ValueError, match="640 x 480 pixels"):
        read_picture(path, None)


def test_only_pillows_images_are_pictures():
    assert is_picture(Image.new("L", (2, 2)))
    assert not any(map(is_picture, ("cat.png", np.zeros((2, 2)), None)))


def test_a_jpeg_with_very_many_scans_is_refused_before_it_is_decoded():
    """Each scan costs as much as the first, and takes a few bytes."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, "JPEG", progressive=True)
    usual = file.getvalue()
    scan, count = usual[usual.rindex(b"\xff\xda") : -2], usual.count(b"\xff\xda")
    for more in (0, SCANS - count):
        assert decode_picture(usual[:-2] + scan * more + usual[-2:], None, 100).shape == (8, 8, 3)
    with pytest.raises(ValueError, match="more than 100 scans"):
        open_picture(usual[:-2] + scan * (SCANS - count + 1) + usual[-2:])


def test_what_looks_like_scans_in_other_pictures_is_none():
    file, more = io.BytesIO(), PngInfo()
    more.add(b"prIv", b"\xff\xda\0" * 2 * SCANS)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(file, "PNG", pnginfo=more)
    assert file.getvalue().count(b"\xff\xda\0") > SCANS
    assert decode_picture(file.getvalue(), None, 100).shape == (8, 8)

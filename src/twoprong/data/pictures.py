"""Pictures (Pillow's) as bytes: upright, transparency on white, 8 bits per channel, no more pixels than memory bears."""

import io
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image as Picture  # only who reads pictures pays for the import

FORMATS = ("JPEG", "PNG", "WEBP")
DEEP_MODES = ("I", "F")
LIMIT = 64_000_000  # pixels: decoded with transparency they take a gigabyte
SCAN, SCANS = b"\xff\xda\x00", 100  # how a scan of a JPEG starts, and how many it may have: about ten are usual


def is_picture(value: object) -> "TypeGuard[Picture]":
    """Whether a value is one of Pillow's images; where Pillow was never imported, nothing is."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


class PixelLimitError(ValueError):
    """More pixels than may be decoded."""


def read_picture(path: Path, image_size: int | None) -> np.ndarray:
    """The bytes of a picture file, (H, W) if grayscale and (H, W, 3) if not.

    `image_size` resizes the shorter side and crops the centre. Raises ValueError for what is no regular file, has 16-bit
    pixels or too many; on damaged files Pillow's decoders raise far more than they document (struct.error, IndexError, ...).
    """
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("not a regular file")
    return decode_picture(path, image_size, LIMIT)


def open_picture(source: Path | bytes) -> "Picture":
    """A file or its content, not decoded yet. Raises whatever Pillow raises, and ValueError for content with many scans."""
    from PIL import Image

    if isinstance(source, bytes) and source.startswith(b"\xff\xd8") and source.count(SCAN) > SCANS:
        raise ValueError(f"a JPEG with more than {SCANS} scans; save it again")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limits here are lower
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)


def decode_picture(source: "Path | bytes | Picture", image_size: int | None, limit: int) -> np.ndarray:
    """As `read_picture`; also takes the content of a file, or a picture from `open_picture`, which it closes.

    Raises PixelLimitError above `limit`, before it is decoded.
    """
    from PIL import ImageOps

    with open_picture(source) if isinstance(source, Path | bytes) else source as opened:
        _check_depth(opened)
        if image_size is not None and opened.width * opened.height > limit:
            opened.draft(None, (2 * image_size, 2 * image_size))  # a JPEG is decoded smaller; others stay
        if opened.width * opened.height > limit:
            raise PixelLimitError(f"{opened.width} x {opened.height} pixels, expected at most {limit:,}; make it smaller")
        ImageOps.exif_transpose(opened, in_place=True)
        return _pixels(opened, image_size)


def picture_bytes(picture: "Picture") -> np.ndarray:
    """The bytes of a picture in memory, as `read_picture` gives them. Raises ValueError for 16-bit pixels."""
    from PIL import ImageOps

    _check_depth(picture)
    return _pixels(ImageOps.exif_transpose(picture), None)


def _check_depth(picture: "Picture") -> None:
    """Refuse more than 8 bits. Of colours with 16, Pillow keeps 8 and says RGB: only its plan for decoding tells."""
    deep = [str(tile[3]) for tile in getattr(picture, "tile", ()) if ";16" in str(tile[3])]
    if deep or picture.mode.split(";")[0] in DEEP_MODES:
        mode = picture.mode if picture.mode.split(";")[0] in DEEP_MODES else deep[0]
        raise ValueError(f"16-bit or float pixels, mode {mode}; save it with 8 bits per channel")


def _pixels(picture: "Picture", image_size: int | None) -> np.ndarray:
    from PIL import Image, ImageOps

    if picture.has_transparency_data:
        picture = picture if picture.mode == "RGBA" else picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    picture = picture.convert("L" if picture.mode in ("1", "L") else "RGB")
    if image_size is not None:
        picture = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.BILINEAR)
    return np.array(picture)

"""From what a client sent to an image as the model takes it, or a `Problem`."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from twoprong.data.pictures import PixelLimitError, decode_picture, open_picture
from twoprong.serve.problems import Problem

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Shape = tuple[int, int, int]
SMALL_BYTES, SMALL_PIXELS = 2**15, 2**14
ZIPPED_CHUNKS = (b"zTXt", b"iTXt", b"iCCP")  # of a PNG: unzipped when it is opened


def decode(data: "bytes | Picture", shape: Shape, max_pixels: int) -> np.ndarray:
    """A JPEG, PNG or WebP file as bytes (C, H, W); resized to the model's size, the centre cropped. Raises Problem."""
    from PIL import Image

    channels, height, width = shape
    try:
        pixels = decode_picture(data, height if height == width else None, max_pixels)
    except PixelLimitError as error:
        raise Problem(413, str(error)) from error
    except Exception as error:  # Pillow's decoders raise far more than they document
        raise Problem(422, "expected a JPEG, PNG or WebP picture with 8 bits per channel; this cannot be read") from error
    if pixels.shape[:2] != (height, width):
        raise Problem(422, f"expected a picture of {width} x {height}, got {pixels.shape[1]} x {pixels.shape[0]}")
    if channels == 1 and pixels.ndim == 3:
        pixels = np.array(Image.fromarray(pixels).convert("L"))
    planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(np.broadcast_to(planes, shape))


class Pictures:
    """Reads the pictures of one request, which together may have `max_pixels`; none any more once it was given up.

    A JPEG that has more by itself, and is decoded smaller, counts as all of them.
    """

    def __init__(self, shape: Shape, max_pixels: int) -> None:
        self._shape, self._most, self._left, self._given_up = shape, max_pixels, max_pixels, False

    def give_up(self) -> None:
        self._given_up = True

    def __call__(self, data: bytes) -> np.ndarray:
        if self._given_up:
            raise Problem(504, "nobody waits for this picture any more")
        try:
            opened = open_picture(data)
        except Exception:  # as in `decode`, which says what is wrong
            return decode(data, self._shape, self._most)
        self._left -= min(opened.width * opened.height, self._most)
        if self._left < 0:
            opened.close()
            raise Problem(413, f"expected at most {self._most:,} pixels in the pictures of a request; send fewer at once")
        return decode(opened, self._shape, self._most)


def opened_if_small(data: bytes) -> "Picture | None":
    """A picture that is decoded in about a millisecond, so that handing it to another thread would cost more; or None."""
    if len(data) > SMALL_BYTES or any(chunk in data for chunk in ZIPPED_CHUNKS):
        return None
    try:
        opened = open_picture(data)
    except Exception:  # as in `decode`, which says what is wrong
        return None
    return opened if opened.width * opened.height <= SMALL_PIXELS else None


def check(batch: np.ndarray, shape: Shape) -> np.ndarray:
    """A tensor of images, float32 in [0, 1] or uint8. Raises Problem for another shape, and for values that are not."""
    if batch.ndim != 4 or batch.shape[1:] != shape:
        expected = ", ".join(map(str, shape))
        raise Problem(422, f"expected a tensor of shape [N, {expected}], got {list(batch.shape)}")
    if not len(batch):
        raise Problem(422, "expected at least one image, got none")
    if batch.dtype == np.float32 and not (batch.min() >= 0 and batch.max() <= 1):  # NaN fails both
        raise Problem(422, "expected FP32 values in [0, 1]; divide by 255, normalisation is the model's own")
    return np.ascontiguousarray(batch)


def digest(image: np.ndarray) -> bytes:
    """The same for copies of one image and for nothing else."""
    return hashlib.blake2b(image.tobytes(), digest_size=16, person=image.dtype.str.encode()).digest()

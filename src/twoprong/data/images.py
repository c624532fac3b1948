"""Images as the package takes them: tensors, arrays, pictures or lists of them, as a batch (N, C, H, W) of floats in [0, 1].

They are checked once, where they enter. An InputError names all that is wrong with them, each with its fix.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from twoprong.data.pictures import is_picture, picture_bytes
from twoprong.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
else:
    Picture = Any  # only who reads pictures pays for the import

# Bytes (uint8) mean 0 to 255 and are divided by 255; floats are in [0, 1]. Channels come second, or unmistakably last.
ImageLike = Tensor | np.ndarray | Picture | Sequence[Tensor | np.ndarray | Picture]
Shape = tuple[int, ...]  # of one image: (channels, height, width)
CHANNELS = (1, 3)


def check_images(images: ImageLike, shape: Shape | None = None) -> Tensor:
    """The batch as NCHW floats in [0, 1]: float32, or float64 where it came as float64.

    Raises InputError for anything else. Costs one pass over the values; a float tensor is not copied. `shape` is what each
    image must have, where that is known.
    """
    checked = check_layout(images, shape)
    check_extent(checked, *extent(checked).tolist())
    return checked


def check_layout(images: ImageLike, shape: Shape | None = None) -> Tensor:
    """The part of `check_images` that does not read the values of a tensor: no GPU is waited for."""
    if isinstance(images, Tensor) and images.is_floating_point() and _fits(images, shape):
        return images if images.dtype == torch.float64 else images.float()
    batch = _batch(images, shape)
    batch = _channels_first(batch, shape) if batch.ndim == 4 else batch
    problems = _layout_problems(batch, shape) + _type_problems(batch)
    scaled = _scaled(batch)
    if problems:
        _refuse(problems + (_value_problems(scaled) if scaled.is_floating_point() and scaled.numel() and batch.ndim else []))
    return scaled


def extent(images: Tensor) -> Tensor:
    """The smallest and the largest value, as one tensor; NaN where there is one."""
    return torch.stack(torch.aminmax(images.detach()))


def check_extent(images: Tensor, low: float, high: float) -> None:
    """The other part: given the `extent` of images, raise InputError unless it lies in [0, 1]."""
    if not (low >= 0 and high <= 1):  # NaN fails both
        _refuse(_value_problems(images.detach()))


def one_image(image: object, where: str) -> Tensor:
    """One tensor, array or picture, with or without channels, as three dimensions. `where` is for the message."""
    if is_picture(image):
        try:
            pixels = torch.from_numpy(picture_bytes(image))
        except (ValueError, OSError) as error:
            raise InputError(f"images: {where} cannot be read ({error})") from error
        return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    found = as_tensor(image, "images")
    if not isinstance(found, Tensor) or found.ndim not in (2, 3):
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"images: expected {where} to be one image (channels, height, width) or a picture, got {got}")
    return found.unsqueeze(0) if found.ndim == 2 else found


def stack_images(images: Sequence[Tensor], shape: Shape | None = None) -> Tensor:
    """Images that `one_image` gave, as a batch; gray ones beside colours (or for a defence of colours) in three channels."""
    parts = [_channels_first(image, shape) for image in images]
    colours = 3 if shape is not None and shape[0] == 3 else max(len(part) for part in parts)
    parts = [part.expand(3, -1, -1) if len(part) == 1 and colours == 3 else part for part in parts]
    for index, part in enumerate(parts):
        if part.shape != parts[0].shape:
            raise InputError(
                f"images: expected one size, got {tuple(part.shape)} in item {index} and {tuple(parts[0].shape)} in item 0; "
                "resize or crop them to one size"
            )
    if len({part.dtype for part in parts}) > 1 and not any(_type_problems(part) for part in parts):
        parts = [_scaled(part) for part in parts]
    return torch.stack(parts)


def as_tensor(values: Any, name: str) -> Any:
    """A numpy array as a tensor of its own memory; anything else unchanged, for the checks to judge."""
    if not isinstance(values, np.ndarray):
        return values
    try:
        return torch.from_numpy(values.astype(values.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {values.dtype}; convert it with astype") from error


def _batch(images: Any, shape: Shape | None) -> Tensor:
    if is_picture(images):
        images = [images]
    if isinstance(images, list | tuple) and images:
        return stack_images([one_image(image, f"item {index}") for index, image in enumerate(images)], shape)
    found = as_tensor(images, "images")
    if not isinstance(found, Tensor):
        kind = f"an empty {type(images).__name__}" if isinstance(images, list | tuple) else type(images).__name__
        raise InputError(f"images: expected a tensor, an array, a picture or a list of them, got {kind}")
    return found


def _fits(images: Tensor, shape: Shape | None) -> bool:
    size = images.shape
    return len(size) == 4 and 0 not in size and (size[1] in CHANNELS if shape is None else size[1:] == shape)


def _channels_first(images: Tensor, shape: Shape | None) -> Tensor:
    """Channels before height and width: moved there from the end where nothing else can be meant."""
    size = tuple(images.shape[-3:])
    if len(size) < 3 or size == shape:
        return images
    known = shape is not None and (size[2], *size[:2]) == shape
    return images.movedim(-1, -3) if known or (size[2] in CHANNELS and size[0] not in CHANNELS) else images


def _scaled(images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images.float() / 255
    return images if images.dtype == torch.float64 or not images.is_floating_point() else images.float()


def _layout_problems(images: Tensor, shape: Shape | None) -> list[str]:
    size = tuple(images.shape)
    if len(size) == 3:
        return [
            f"expected a batch (images, channels, height, width), got shape {size}; for one image use images[None], "
            "for a batch of grayscale images without channels images[:, None]"
        ]
    if len(size) != 4:
        return [f"expected 4 dimensions (images, channels, height, width), got shape {size}; reshape to (N, C, H, W)"]
    problems = []
    if 0 in size:
        problems.append(f"expected at least one image, got shape {size}; skip empty batches")
    if shape is not None and size[1:] != shape:
        problems.append(
            f"expected (channels, height, width) = {shape}, as this defence was fitted on, "
            f"got {size[1:]}; convert or resize them, or fit on such images"
        )
    elif size[1] not in CHANNELS:
        problems.append(f"expected 1 or 3 channels, got {size[1]} (shape {size}); convert to grayscale or RGB first")
    return problems


def _type_problems(images: Tensor) -> list[str]:
    if images.is_floating_point() or images.dtype == torch.uint8:
        return []
    fix = "images.float(), scaled to [0, 1]"
    if images.numel() and not images.is_complex() and images.dtype != torch.bool:
        low, high = extent(images.double()).tolist()
        fix = "images.to(torch.uint8)" if low >= 0 and 1 < high <= 255 else fix
    return [f"expected floats in [0, 1] or bytes (uint8), got {images.dtype}; use {fix}"]


def _value_problems(images: Tensor) -> list[str]:
    problems, finite = [], images.isfinite()
    if not finite.all():
        first = int((~finite).nonzero()[0, 0])
        kind = "NaN" if images[first].isnan().any() else "infinity"
        problems.append(
            f"expected finite values in [0, 1], got {kind} first in image {first} of {len(images)}; "
            "mend or leave out such images"
        )
    low, high = extent(images[finite]).tolist() if finite.any() else (0.0, 1.0)
    if low < 0 or high > 1:
        if low >= -0.001 and high <= 1.001:
            fix = "clip the rounding error with images.clip(0, 1)"
        elif low < 0:
            fix = "undo the normalisation and keep it inside the classifier"
        else:
            fix = "divide by 255 and keep normalisation inside the classifier"
        problems.append(f"expected values in [0, 1], got [{low:.9g}, {high:.9g}]; {fix}")
    return problems


def _refuse(problems: list[str]) -> NoReturn:
    listed = problems[0] if len(problems) == 1 else f"{len(problems)} problems\n  " + "\n  ".join(problems)
    raise InputError(f"images: {listed}")

"""Images and labels as tensors, and the checks made on them once, where they enter the package."""

import hashlib
import numbers
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from twoprong.errors import InputError


@dataclass(frozen=True, eq=False)
class Labelled:
    """Images (NCHW float32 in [0, 1]) with one int64 label each."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> "Labelled":
        return Labelled(self.images[index], self.labels[index])

    def to(self, device: torch.device | str) -> "Labelled":
        return Labelled(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set: what may be learned from (`train`), what is only measured on (`test`), the names of the classes."""

    name: str
    train: Labelled
    test: Labelled
    classes: tuple[str, ...]

    def to(self, device: torch.device | str) -> "ImageData":
        return ImageData(self.name, self.train.to(device), self.test.to(device), self.classes)

    def everything(self) -> Labelled:
        """Train and test as one: for images of which nothing is learned."""
        both = (self.train, self.test)
        return Labelled(torch.cat([part.images for part in both]), torch.cat([part.labels for part in both]))


def check_images(images: Tensor) -> Tensor:
    """The batch as NCHW floats in [0, 1]: float32, or float64 where it came as float64.

    Raises InputError, with the fix in the message, for anything else. Costs one pass over the values.
    """
    images = check_layout(images)
    low, high = extent(images).tolist()
    check_extent(images, low, high)
    return images


def check_layout(images: Tensor) -> Tensor:
    """The part of `check_images` that does not read the values: no GPU is waited for."""
    if not isinstance(images, Tensor):
        raise InputError(f"images: expected a torch tensor, got {_kind(images)}; convert it, e.g. torch.from_numpy(array)")
    _check_dimensions(images)
    if not images.dtype.is_floating_point:
        fix = "images.float() / 255" if images.dtype == torch.uint8 else "images.float(), scaled to [0, 1]"
        raise InputError(f"images: expected floating-point values in [0, 1], got {images.dtype}; use {fix}")
    if images.numel() == 0:
        raise InputError(f"images: expected at least one image, got shape {_shape(images)}; skip empty batches")
    return images if images.dtype == torch.float64 else images.float()


def extent(images: Tensor) -> Tensor:
    """The smallest and the largest value, as one tensor; NaN where there is one."""
    return torch.stack(torch.aminmax(images.detach()))


def check_extent(images: Tensor, low: float, high: float) -> None:
    """The other part: given the `extent` of images, raise InputError unless it lies in [0, 1]."""
    if not (low >= 0 and high <= 1):  # NaN fails both
        _refuse_values(images.detach(), low, high)


def check_labels(labels: Tensor, count: int, classes: int | None = None) -> Tensor:
    """`count` labels as int64, each in [0, classes). Raises InputError naming the first label that is not."""
    if not isinstance(labels, Tensor):
        raise InputError(f"labels: expected a torch tensor, got {_kind(labels)}; convert it: torch.as_tensor(labels)")
    if labels.ndim != 1:
        fix = "labels.argmax(1) if they are one-hot" if labels.ndim == 2 and labels.shape[1] > 1 else "labels.flatten()"
        raise InputError(f"labels: expected shape ({count},), got {_shape(labels)}; use {fix}")
    if labels.dtype == torch.bool or labels.dtype.is_floating_point or labels.dtype.is_complex:
        raise InputError(f"labels: expected whole numbers (int64), got {labels.dtype}; use labels.long()")
    if len(labels) != count:
        raise InputError(f"labels: expected {count}, one per image, got {len(labels)}; pass images and labels in pairs")
    labels = labels.long()
    wrong = labels < 0 if classes is None else (labels < 0) | (labels >= classes)
    if wrong.any():
        first = int(wrong.nonzero()[0, 0])
        allowed = "0 or more" if classes is None else f"0 to {classes - 1} ({classes} classes)"
        raise InputError(
            f"labels: expected {allowed}, got {int(labels[first])} at index {first}; "
            "number the classes from 0 and leave out images without a class"
        )
    return labels


def image_digests(images: Tensor) -> Tensor:
    """64 bits of SHA-256 per image, over its pixels as bytes (0 to 255): the same picture has the same one in any format."""
    pixels = (images.detach() * 255).round().clamp(0, 255).byte().cpu().flatten(1).numpy()
    digests = (hashlib.sha256(row.tobytes()).digest()[:8] for row in pixels)
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests])


def as_labelled(
    images: "Tensor | np.ndarray | Labelled | Dataset[Any] | DataLoader[Any]",
    labels: Tensor | np.ndarray | None = None,
    classes: int | None = None,
) -> Labelled:
    """Checked images and labels from tensors or arrays, from a map-style Dataset of (image, label), or a DataLoader.

    Raises InputError for items that are not pairs, images of different sizes, and whatever the two checks refuse.
    """
    if isinstance(images, Labelled | Dataset | DataLoader):
        if labels is not None:
            raise InputError(f"labels: expected none beside a {_kind(images)}, which has its own; leave them out")
        if isinstance(images, Labelled):
            pair = (images.images, images.labels)
        else:
            pair = _from_loader(images) if isinstance(images, DataLoader) else _from_dataset(images)
    elif labels is not None:
        pair = (_tensor(images, "images"), _tensor(labels, "labels"))
    else:
        raise InputError(
            f"labels: expected one per image, got none beside {_kind(images)}; pass as_labelled(images, labels), "
            "or a Dataset or DataLoader of (image, label) pairs"
        )
    checked = check_images(pair[0]).detach().float()
    return Labelled(checked, check_labels(pair[1], len(checked), classes).to(checked.device))


def _check_dimensions(images: Tensor) -> None:
    """Refuse anything but (images, channels, height, width) with 1 or 3 channels."""
    if images.ndim == 3:
        raise InputError(
            f"images: expected a batch (images, channels, height, width), got shape {_shape(images)}; for one image "
            "use images.unsqueeze(0), for a batch of grayscale images without channels images.unsqueeze(1)"
        )
    if images.ndim != 4:
        raise InputError(
            f"images: expected 4 dimensions (images, channels, height, width), got shape {_shape(images)}; "
            "reshape to (N, C, H, W)"
        )
    if images.shape[1] in (1, 3):
        return
    if images.shape[3] in (1, 3):
        raise InputError(
            f"images: expected channels second (N, C, H, W), got shape {_shape(images)} with channels last; "
            "use images.permute(0, 3, 1, 2)"
        )
    raise InputError(
        f"images: expected 1 or 3 channels, got {images.shape[1]} (shape {_shape(images)}); "
        "convert to grayscale or RGB first"
    )


def _refuse_values(images: Tensor, low: float, high: float) -> NoReturn:
    finite = images.isfinite()
    if not finite.all():
        first = int((~finite).nonzero()[0, 0])
        kind = "NaN" if images[first].isnan().any() else "infinity"
        raise InputError(
            f"images: expected finite values in [0, 1], got {kind} first in image {first} of {len(images)}; "
            "mend or leave out such images"
        )
    if low >= -0.001 and high <= 1.001:
        fix = "clip the rounding error with images.clamp(0, 1)"
    elif low < 0:
        fix = "undo the normalisation and keep it inside the classifier"
    else:
        fix = "divide by 255 and keep normalisation inside the classifier"
    raise InputError(f"images: expected values in [0, 1], got [{low:.9g}, {high:.9g}]; {fix}")


def _from_dataset(dataset: Dataset[Any]) -> tuple[Tensor, Tensor]:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(
            f"images: expected a Dataset with a length and an index, got {_kind(dataset)}; wrap it in a DataLoader"
        )
    images: list[Tensor] = []
    labels: list[int] = []
    for index in range(len(dataset)):
        item = dataset[index]
        label = _label(item[1]) if isinstance(item, tuple | list) and len(item) == 2 else None
        if label is None or not isinstance(item[0], Tensor):
            raise InputError(
                f"images: expected item {index} to be a pair (image tensor, whole-number label), got {_content(item)}; "
                "give the Dataset a transform that makes float tensors in [0, 1]"
            )
        _check_same(images, item[0], f"item {index}", "item 0", 0)
        images.append(item[0])
        labels.append(label)
    if not images:
        raise InputError("images: expected at least one item, got an empty Dataset; check how it was made")
    return torch.stack(images), torch.tensor(labels)


def _from_loader(loader: DataLoader[Any]) -> tuple[Tensor, Tensor]:
    images: list[Tensor] = []
    labels: list[Tensor] = []
    for index, batch in enumerate(loader):
        pair = isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
        if not pair or batch[0].ndim == 0 or batch[1].ndim == 0:
            raise InputError(
                f"images: expected batch {index} to be a pair of tensors (images, labels), got {_content(batch)}; "
                "change the DataLoader's data set or its collate_fn"
            )
        _check_same(images, batch[0], f"batch {index}", "batch 0", 1)
        images.append(batch[0])
        labels.append(check_labels(batch[1], len(batch[0])))
    if not images:
        raise InputError("images: expected at least one batch, got an empty DataLoader; check its data and drop_last")
    return torch.cat(images), torch.cat(labels)


def _check_same(images: list[Tensor], image: Tensor, here: str, there: str, skip: int) -> None:
    """Refuse an image shaped unlike the first one, the leading `skip` dimensions aside."""
    if images and image.shape[skip:] != images[0].shape[skip:]:
        raise InputError(
            f"images: expected one size, got {tuple(image.shape[skip:])} in {here} "
            f"and {tuple(images[0].shape[skip:])} in {there}; resize or crop them to one size"
        )


def _label(value: object) -> int | None:
    if isinstance(value, Tensor):
        whole = value.numel() == 1 and not value.dtype.is_floating_point and value.dtype != torch.bool
        return int(value.item()) if whole else None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return None
    return int(value)


def _tensor(values: Any, name: str) -> Any:
    """A numpy array as a tensor of its own memory; anything else unchanged, for the checks to judge."""
    if not isinstance(values, np.ndarray):
        return values
    try:
        return torch.from_numpy(values.copy())
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {values.dtype}; convert it with astype") from error


def _content(item: object) -> str:
    return f"({', '.join(_kind(part) for part in item)})" if isinstance(item, tuple | list) else _kind(item)


def _kind(value: object) -> str:
    return type(value).__name__


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))

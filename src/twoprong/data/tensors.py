"""Images with labels as tensors: what data sets and loaders are turned into, checked once, where they enter the package."""

import hashlib
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from twoprong.data.images import ImageLike, Shape, as_tensor, check_images, check_layout, one_image, stack_images
from twoprong.errors import InputError

ARRAYS = (Tensor, np.ndarray)


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


def check_labels(labels: Tensor, count: int, classes: int | None = None) -> Tensor:
    """`count` labels as int64, each in [0, classes). Raises InputError naming the first label that is not."""
    if not isinstance(labels, Tensor):
        raise InputError(f"labels: expected a torch tensor, got {_kind(labels)}; convert it: torch.as_tensor(labels)")
    if labels.ndim != 1:
        fix = "labels.argmax(1) if they are one-hot" if labels.ndim == 2 and labels.shape[1] > 1 else "labels.flatten()"
        raise InputError(f"labels: expected shape ({count},), got {tuple(labels.shape)}; use {fix}")
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
    images: "ImageLike | Labelled | Dataset[Any] | DataLoader[Any]",
    labels: Tensor | np.ndarray | Sequence[int] | None = None,
    classes: int | None = None,
    shape: Shape | None = None,
) -> Labelled:
    """Checked images and labels from whatever `check_images` takes, a map-style Dataset of (image, label), or a DataLoader.

    A list of pairs is such a Dataset. Raises InputError for items that are not pairs, images of different sizes, and
    whatever the two checks refuse.
    """
    pair: tuple[Any, Any]
    if isinstance(images, Labelled | Dataset | DataLoader) or (labels is None and isinstance(images, list)):
        if labels is not None:
            raise InputError(f"labels: expected none beside a {_kind(images)}, which has its own; leave them out")
        if isinstance(images, Labelled):
            pair = (images.images, images.labels)
        else:
            pair = _from_loader(images, shape) if isinstance(images, DataLoader) else _from_dataset(images, shape)
    elif labels is not None:
        pair = (images, labels)
    else:
        raise InputError(
            f"labels: expected one per image, got none beside {_kind(images)}; pass as_labelled(images, labels), "
            "or a Dataset or DataLoader of (image, label) pairs"
        )
    checked = check_images(pair[0], shape).detach().float()
    return Labelled(checked, check_labels(_numbers(pair[1]), len(checked), classes).to(checked.device))


def _from_dataset(dataset: Any, shape: Shape | None) -> tuple[Tensor, Tensor]:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(
            f"images: expected a Dataset with a length and an index, got {_kind(dataset)}; wrap it in a DataLoader"
        )
    images: list[Tensor] = []
    labels: list[int] = []
    for index in range(len(dataset)):
        item = dataset[index]
        label = _label(item[1]) if isinstance(item, tuple | list) and len(item) == 2 else None
        if label is None:
            raise InputError(
                f"images: expected item {index} to be a pair (image, whole-number label), got {_content(item)}; "
                "change what the Dataset gives, or pass labels beside the images"
            )
        images.append(one_image(item[0], f"item {index}"))
        labels.append(label)
    if not images:
        raise InputError("images: expected at least one item, got an empty Dataset; check how it was made")
    return stack_images(images, shape), torch.tensor(labels)


def _from_loader(loader: DataLoader[Any], shape: Shape | None) -> tuple[Tensor, Tensor]:
    images: list[Tensor] = []
    labels: list[Tensor] = []
    for index, batch in enumerate(loader):
        pair = isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, ARRAYS) for part in batch)
        if not pair:
            raise InputError(
                f"images: expected batch {index} to be a pair of tensors (images, labels), got {_content(batch)}; "
                "change the DataLoader's data set or its collate_fn"
            )
        found = check_layout(batch[0], shape)
        if images and found.shape[1:] != images[0].shape[1:]:
            raise InputError(
                f"images: expected one size, got {tuple(found.shape[1:])} in batch {index} "
                f"and {tuple(images[0].shape[1:])} in batch 0; resize or crop them to one size"
            )
        images.append(found)
        labels.append(check_labels(_numbers(batch[1]), len(found)))
    if not images:
        raise InputError("images: expected at least one batch, got an empty DataLoader; check its data and drop_last")
    return torch.cat(images), torch.cat(labels)


def _numbers(labels: Any) -> Any:
    """Labels in an array or a list of whole numbers as a tensor; anything else unchanged, for the check to judge."""
    if isinstance(labels, list | tuple) and labels and None not in (found := [_label(value) for value in labels]):
        return torch.tensor(found)
    return as_tensor(labels, "labels")


def _label(value: object) -> int | None:
    if isinstance(value, Tensor):
        whole = value.numel() == 1 and not value.dtype.is_floating_point and value.dtype != torch.bool
        return int(value.item()) if whole else None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return None
    return int(value)


def _content(item: object) -> str:
    return f"({', '.join(_kind(part) for part in item)})" if isinstance(item, tuple | list) else _kind(item)


def _kind(value: object) -> str:
    return type(value).__name__

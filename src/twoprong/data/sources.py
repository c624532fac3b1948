"""Where images come from: a named data set, or a folder with one sub-folder per class."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import torch

from twoprong.data.cifar10 import CLASSES, load_cifar10
from twoprong.data.digits import load_digits
from twoprong.data.folder import load_folder
from twoprong.data.tensors import ImageData, Labelled
from twoprong.errors import DataError, InputError
from twoprong.seeds import generator
from twoprong.shipped import images_of
from twoprong.storage import load_tensors


def _packaged(name: str, load: Callable[[], ImageData], root: Path | None) -> ImageData:
    if root is not None:
        raise InputError(f"data root: expected none for '{name}', which comes with the package, got {root}; leave it out")
    return load()


def _cifar10_small() -> ImageData:
    """The test images that come with the bundle of that name; there is nothing to learn from."""
    file = images_of("cifar10-small")
    tensors, _ = load_tensors(file)
    try:
        test = Labelled(tensors["images"], tensors["labels"])
    except KeyError as error:
        raise DataError(f"{file}: expected the tensors images and labels, {error} is missing; install anew") from error
    return ImageData("cifar10-small", test[:0], test, CLASSES)


def _cifar10(root: Path | None) -> ImageData:
    if root is None:
        raise DataError(
            "cifar10: expected the place of the files, got none; pass --data-root (root=...): "
            "a folder with cifar10.npz or with the official Python batches"
        )
    return load_cifar10(root.expanduser())


SOURCES: dict[str, Callable[[Path | None], ImageData]] = {
    "digits": partial(_packaged, "digits", load_digits),
    "cifar10": _cifar10,
    "cifar10-small": partial(_packaged, "cifar10-small", _cifar10_small),
}


def load_data(source: str, root: Path | None = None, image_size: int | None = None, strict: bool = False) -> ImageData:
    """The data set called `source`, or the folder of that path (a folder named like a source: write './digits').

    `root` is for named sources that live on disk; `image_size` and `strict` are for folders, whose pictures come in an
    order that does not depend on their classes. Raises DataError for what cannot be found or read, InputError for an
    argument that the source has no use for.
    """
    if source in SOURCES:
        if image_size is not None:
            raise InputError(
                f"image size: expected none for '{source}', whose images have one size, got {image_size}; "
                "leave out --image-size"
            )
        return SOURCES[source](root)
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise DataError(f"data: {_unknown(source, folder)}")
    if root is not None:
        raise InputError(f"data root: expected none beside the folder {source}, got {root}; leave out --data-root")
    data = load_folder(folder, image_size, strict)
    return ImageData(data.name, _mixed(data.train), _mixed(data.test), data.classes)


def _mixed(part: Labelled) -> Labelled:
    """A folder is read class by class; a batch of neighbours would be a batch of one class."""
    return part[torch.randperm(len(part), generator=generator(0, "folder order"))]


def _unknown(source: str, folder: Path) -> str:
    named = ", ".join(sorted(SOURCES))
    near = get_close_matches(source.lower(), SOURCES, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    found = "a file" if folder.exists() else "neither a named source nor a folder"
    return f"'{source}' is {found}{hint}; expected one of {named}, or a folder with one sub-folder per class"

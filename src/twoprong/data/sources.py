"""Where images come from: a named data set, or a folder with one sub-folder per class."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import torch

from twoprong.data.cifar10 import CLASSES, load_cifar10
from twoprong.data.digits import load_digits
from twoprong.data.folder import has_test, load_folder
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


def load_data(
    source: str,
    root: Path | None = None,
    image_size: int | None = None,
    strict: bool = False,
    classes: Sequence[str] | None = None,
    whole: bool = False,
) -> ImageData:
    """The data set called `source`, or the folder of that path (a folder named like a source: write './digits').

    `root` is for named sources that live on disk; `image_size` and `strict` are for folders, whose pictures come in an
    order that does not depend on their classes. With `classes`, the names in a classifier's order, labels follow that order
    instead of the alphabet's. With `whole` a folder's `val` beside `train` and `test` is part of the test. Raises DataError
    for what cannot be found or read, InputError for an argument that the source has no use for, or a class that is not
    among `classes`.
    """
    data = _load(source, root, image_size, strict, whole)
    return data if classes is None else arrange(data, classes)


def arrange(data: ImageData, classes: Sequence[str]) -> ImageData:
    """The same images with labels in the order of `classes`, which may have more names than the data have."""
    repeated = sorted({name for name in classes if list(classes).count(name) > 1})
    if repeated:
        raise InputError(f"classes: expected every name once, got {', '.join(repeated)} more than once")
    strange = [name for name in data.classes if name not in classes]
    if strange:
        raise InputError(
            f"classes: {data.name} has {', '.join(strange)}, which {'is' if len(strange) == 1 else 'are'} not among "
            f"{', '.join(classes)}; --classes lists every class, in the order of the classifier's outputs, as the folders "
            "are named"
        )
    places = torch.tensor([list(classes).index(name) for name in data.classes])

    def moved(part: Labelled) -> Labelled:
        return Labelled(part.images, places.to(part.labels.device)[part.labels])

    return ImageData(data.name, moved(data.train), moved(data.test), tuple(classes))


def part_folder(source: str, part: str) -> Path:
    """The sub-folder `part` (train, val, test) of a folder of pictures. Raises DataError where there is none."""
    folder = Path(source).expanduser() / part
    if source in SOURCES or not folder.is_dir():
        raise DataError(
            f"{source}: expected a sub-folder {part}/ with one folder per class in it, there is none; "
            f"make {folder}, or name a directory"
        )
    return folder


def has_own_test(source: str) -> bool:
    """Whether the test images are a part that the source has by itself, not a fifth that we took out of a folder."""
    return source in SOURCES or has_test(Path(source).expanduser())


def _load(source: str, root: Path | None, image_size: int | None, strict: bool, whole: bool) -> ImageData:
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
    data = load_folder(folder, image_size, strict, whole)
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

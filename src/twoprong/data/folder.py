"""A folder of pictures, one sub-folder per class."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from twoprong.data.pictures import read_picture
from twoprong.data.tensors import ImageData, Labelled
from twoprong.errors import DataError, InputError
from twoprong.seeds import generator

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
HELD_OUT = 5
PARTS = ("train", "test", "val")  # sub-folders that are no classes, where they hold folders themselves

log = logging.getLogger("twoprong")


def load_folder(root: Path, image_size: int | None, strict: bool, whole: bool = False) -> ImageData:
    """The pictures under `root` as tensors, classes sorted by name.

    With `train` and `test` sub-folders (of the same classes) those are the two parts, `val` in the place of a `test` that
    is not there; otherwise a fifth of each class, always the same, is held out as test.
    Grayscale if every picture is, else RGB (transparency shown on white). `image_size` resizes the shorter side and crops
    the centre; without it all pictures must have one size.

    Pictures that cannot be read are named in a warning and left out, or, if `strict`, raise DataError. So do fewer than
    two classes, a class without pictures and differing sizes.
    """
    if image_size is not None and image_size < 1:
        raise InputError(f"image size: expected 1 pixel or more, got {image_size}; pass --image-size N")
    if not root.is_dir():
        raise DataError(f"{root}: expected a folder with one sub-folder per class, got no folder; check the path")
    parts = _parts(root, whole)
    classes = _classes(parts)
    reader = _Reader(image_size)
    pictures = {part: [reader.read_all(part / name) for name in classes] for part in parts}
    reader.report(root, strict)
    least = 2 if parts == (root,) else 1
    for part, by_class in pictures.items():
        for name, found in zip(classes, by_class, strict=True):
            if len(found) < least:
                why = " (one is held out)" if least == 2 else ""
                raise DataError(
                    f"{part / name}: expected {least} or more readable pictures{why}, got {len(found)}; "
                    "add some or remove the class"
                )
    if parts == (root,):
        held = [_hold_out(found, name) for name, found in zip(classes, pictures[root], strict=True)]
        train, test = [kept for kept, _ in held], [out for _, out in held]
    else:
        train, *others = pictures.values()
        test = [[picture for found in by_class for picture in found] for by_class in zip(*others, strict=True)]
    gray = all(picture.ndim == 2 for found in train + test for picture in found)
    return ImageData(root.resolve().name, _labelled(train, gray), _labelled(test, gray), classes)


def has_test(root: Path) -> bool:
    """Whether the test images are a part of the folder, not a fifth that is taken out of it."""
    return root / "test" in _parts(root, whole=False)


def _parts(root: Path, whole: bool) -> tuple[Path, ...]:
    """(train, test) or (train, val) where both hold folders (otherwise they are classes with those names), or (root,).

    All three with `whole`, where they are there.
    """
    train, test, val = (root / name if (root / name).is_dir() and _folders(root / name) else None for name in PARTS)
    second = test or val
    third = (val,) if whole and val is not None and second is test else ()
    return (train, second, *third) if train is not None and second is not None else (root,)


def _classes(parts: tuple[Path, ...]) -> tuple[str, ...]:
    classes = _folders(parts[0])
    if len(classes) < 2:
        raise DataError(
            f"{parts[0]}: expected a sub-folder for each of two or more classes, "
            f"got {', '.join(classes) or 'no sub-folder'}; sort the pictures into folders named by class"
        )
    for part in parts[1:]:
        unmatched = sorted(set(classes) ^ set(_folders(part)))
        if unmatched:
            raise DataError(
                f"{part.parent}: expected the same classes in {parts[0].name} and {part.name}, but these are only in one of "
                f"them: {', '.join(unmatched)}; add or remove them"
            )
    for part in parts:
        for name in classes:
            if next(_files(part / name), None) is None:
                raise DataError(
                    f"{part / name}: expected pictures ({', '.join(SUFFIXES)}), got none; add some or remove the folder"
                )
    return classes


def _folders(root: Path) -> tuple[str, ...]:
    """The sub-folders, each a class. Their names and this one's go into bundles and reports, which are UTF-8."""
    there = (entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    found = sorted(there, key=lambda folder: folder.name)
    for folder in (root.resolve(), *found):
        try:
            folder.name.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{os.fsencode(folder)!r}: expected a folder's name in UTF-8; rename it") from error
    return tuple(folder.name for folder in found)


def _files(root: Path) -> Iterator[Path]:
    """Picture files at any depth, hidden ones aside, in an order that does not depend on the file system."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name.lower().endswith(SUFFIXES):
                yield Path(folder, name)


class _Reader:
    """Reads pictures of one size and remembers what could not be read."""

    def __init__(self, image_size: int | None) -> None:
        self.image_size = image_size
        self.unreadable: list[tuple[Path, str]] = []
        self.first: tuple[Path, tuple[int, ...]] | None = None

    def read_all(self, folder: Path) -> list[np.ndarray]:
        found = []
        for path in _files(folder):
            try:
                picture = read_picture(path, self.image_size)
            except Exception as error:  # whatever Pillow's decoders raise
                self.unreadable.append((path, str(error) or type(error).__name__))
                continue
            self._check_size(path, picture)
            found.append(picture)
        return found

    def report(self, root: Path, strict: bool) -> None:
        if not self.unreadable:
            return
        count = f"{len(self.unreadable)} picture{'s' if len(self.unreadable) > 1 else ''}"
        if strict:
            path, reason = self.unreadable[0]
            raise DataError(f"{path}: cannot be read ({reason}); {count} unreadable in all: mend or remove, or drop strict")
        for path, reason in self.unreadable:
            log.warning("%s: left out, cannot be read (%s)", path, reason)
        log.warning("%s: left out %s that cannot be read", root, count)

    def _check_size(self, path: Path, picture: np.ndarray) -> None:
        """At once, not at the end: a folder of large photographs would fill the memory first."""
        size = picture.shape[1::-1]
        self.first = self.first or (path, size)
        other, expected = self.first
        if size != expected:
            raise DataError(
                f"pictures differ in size: {other} is {expected[0]}x{expected[1]}, {path} is {size[0]}x{size[1]}; "
                "pass --image-size N to resize and crop them all to NxN"
            )


def _hold_out(found: list[np.ndarray], name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(train, test): a fifth of one class, at least one picture, chosen by class name and number of pictures."""
    count = max(1, round(len(found) / HELD_OUT))
    out = set(torch.randperm(len(found), generator=generator(0, "folder", name))[:count].tolist())
    return (
        [picture for index, picture in enumerate(found) if index not in out],
        [found[index] for index in sorted(out)],
    )


def _labelled(by_class: list[list[np.ndarray]], gray: bool) -> Labelled:
    shown = [picture for found in by_class for picture in found]
    if gray:
        images = torch.from_numpy(np.stack(shown)).unsqueeze(1)
    else:
        colour = [picture if picture.ndim == 3 else np.stack([picture] * 3, axis=-1) for picture in shown]
        images = torch.from_numpy(np.stack(colour)).permute(0, 3, 1, 2).contiguous()
    counts = torch.tensor([len(found) for found in by_class])
    return Labelled(images.float().div_(255), torch.arange(len(by_class)).repeat_interleave(counts))

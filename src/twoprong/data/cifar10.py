"""CIFAR-10 from disk: an `.npz` file, or the official Python batches read without ever running them."""

import pickletools
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from twoprong.data.tensors import ImageData, Labelled
from twoprong.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
ROW = 3 * 32 * 32

STRINGS = {"SHORT_BINSTRING", "BINSTRING"}
AROUND_LABELS = {"EMPTY_LIST", "MARK", "APPENDS", "APPEND", "BINPUT", "LONG_BINPUT"}


def load_cifar10(root: Path) -> ImageData:
    """CIFAR-10 as (N, 3, 32, 32) in [0, 1].

    `root` is an `.npz` file, or a folder with `cifar10.npz` (x_train and x_test uint8 (N, 32, 32, 3), y_train, y_test),
    or with the official batches, directly or in `cifar-10-batches-py`. Raises DataError naming the file at fault.
    """
    archive = root if root.suffix == ".npz" else root / "cifar10.npz"
    if archive.is_file():
        return _from_npz(archive)
    folder = root / "cifar-10-batches-py"
    folder = folder if folder.is_dir() else root
    missing = [name for name in (*TRAIN_BATCHES, TEST_BATCH) if not (folder / name).is_file()]
    if missing:
        packed = folder / "cifar-10-python.tar.gz"
        hint = f"; unpack {packed} first" if packed.is_file() else ""
        raise DataError(
            f"{root}: no CIFAR-10 here: expected an .npz file, or a folder with cifar10.npz or with the official "
            f"Python batches data_batch_1 to data_batch_5 and test_batch (directly or in cifar-10-batches-py); "
            f"missing in {folder}: {', '.join(missing)}{hint}"
        )
    batches = [_read_batch(folder / name) for name in TRAIN_BATCHES]
    train = _labelled(np.concatenate([rows for rows, _ in batches]), np.concatenate([labels for _, labels in batches]))
    return ImageData("cifar10", train, _labelled(*_read_batch(folder / TEST_BATCH)), CLASSES)


def _from_npz(path: Path) -> ImageData:
    try:
        with np.load(path, allow_pickle=False) as stored:
            absent = [name for name in ARRAYS if name not in stored]
            if absent:
                raise DataError(f"{path}: expected the arrays {', '.join(ARRAYS)}; missing: {', '.join(absent)}")
            x_train, y_train, x_test, y_test = (stored[name] for name in ARRAYS)
    except DataError:
        raise
    except Exception as error:  # damaged ones raise what zipfile, zlib, tokenize and numpy have, MemoryError included
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise DataError(f"{path}: not a readable .npz file of plain arrays ({reason}); make or copy it again") from error
    train, test = _checked(path, "train", x_train, y_train), _checked(path, "test", x_test, y_test)
    return ImageData("cifar10", train, test, CLASSES)


def _checked(path: Path, part: str, images: np.ndarray, labels: np.ndarray) -> Labelled:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (32, 32, 3) or len(images) == 0:
        raise DataError(
            f"{path}: x_{part}: expected uint8 of shape (N, 32, 32, 3), got {images.dtype} of shape {images.shape}"
        )
    # Some tools (Keras) store the labels as a column.
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.dtype.kind not in "iu" or flat.shape != (len(images),):
        raise DataError(
            f"{path}: y_{part}: expected {len(images)} whole numbers, one per image of x_{part}, "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    _check_range(f"{path}: y_{part}", flat)
    return _labelled(images.transpose(0, 3, 1, 2), flat)


def _read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows (N, 3, 32, 32) of bytes and their labels, from one official batch.

    The file is a program for Python's unpickler. Here its instructions are only listed, none is carried out: what is
    kept is the one long string (the pixels) and the numbers that follow the string 'labels'.
    """
    try:
        with path.open("rb") as file:
            pixels, labels = _scan(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not an official CIFAR-10 Python batch ({error}); download it again") from error
    _check_range(str(path), labels)
    return np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32), labels


def _scan(file: BinaryIO) -> tuple[bytes, np.ndarray]:
    """The pixels and the labels; ValueError says what was found instead. Stops before the ten thousand file names."""
    pixels: bytes | None = None
    labels: list[int] = []
    in_labels = False
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in STRINGS:
            in_labels = argument == "labels"
            if in_labels and labels:
                raise ValueError("two lists of labels")
            if argument and len(argument) % ROW == 0:
                if pixels is not None:
                    raise ValueError("two blocks of pixels")
                pixels = argument.encode("latin-1")
        elif in_labels and isinstance(argument, int) and opcode.name == "BININT1":
            labels.append(argument)
        elif in_labels and opcode.name not in AROUND_LABELS:
            raise ValueError(f"{opcode.name} among the labels")
        if pixels is not None and labels and not in_labels:
            break
    if pixels is None:
        raise ValueError(f"no pixels: no string whose length is a multiple of {ROW}")
    if len(labels) * ROW != len(pixels):
        raise ValueError(f"{len(pixels) // ROW} images but {len(labels)} labels")
    return pixels, np.array(labels, np.int64)


def _check_range(where: str, labels: np.ndarray) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= len(CLASSES)))
    if len(wrong):
        raise DataError(f"{where}: expected labels 0 to 9, got {labels[wrong[0]]} at index {wrong[0]}")


def _labelled(pixels: np.ndarray, labels: np.ndarray) -> Labelled:
    images = torch.from_numpy(np.ascontiguousarray(pixels, np.uint8).astype(np.float32)).div_(255)
    return Labelled(images, torch.from_numpy(labels.astype(np.int64)))

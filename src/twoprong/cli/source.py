"""The images that a command is about."""

from pathlib import Path

from twoprong.cli.arguments.shared import KINDS
from twoprong.cli.output import err
from twoprong.data.sources import load_data
from twoprong.data.tensors import ImageData
from twoprong.errors import InputError
from twoprong.shipped import name_of, names


def get_data(data: str | None, bundle: Path | None, root: Path | None, image_size: int | None) -> ImageData:
    """The images of --data; without it those that come with the bundle, where it is one of the package's."""
    if data is None:
        data = None if bundle is None else name_of(bundle)
    if data is None:
        own = ", ".join(names()) or "none is installed"
        raise InputError(f"--data: expected {KINDS}, got none; only a bundle of the package ({own}) brings its own images")
    return load_data(data, root, image_size)


def say_fewer(wanted: int | None, data: ImageData) -> None:
    """Nobody should believe that more images were attacked than there are."""
    if wanted is not None and wanted > len(data.test):
        err.print(
            f"--images {wanted}: {data.name} has {len(data.test)} test images; all of them are taken.", highlight=False
        )

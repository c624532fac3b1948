"""The images that a command is about."""

from collections.abc import Sequence
from pathlib import Path

from twoprong.bundle import read_manifest
from twoprong.cli.arguments.shared import KINDS, Split
from twoprong.cli.output import err
from twoprong.data.sources import arrange, load_data, part_folder
from twoprong.data.tensors import ImageData
from twoprong.errors import InputError
from twoprong.shipped import names, source_of


def get_data(
    data: str | None,
    bundle: Path | None,
    root: Path | None,
    image_size: int | None,
    classes: Sequence[str] | None = None,
    split: Split = Split.test,
) -> ImageData:
    """The images of --data; without it those that come with the bundle, where it is one of the package's.

    Labels follow `classes`, or else the names that the bundle has. The part that `split` names is the test part; nothing
    is left to learn from where that was a part of it.
    """
    if data is None:
        data = None if bundle is None else source_of(bundle)
    if data is None:
        own = ", ".join(names()) or "none is installed"
        raise InputError(f"--data: expected {KINDS}, got none; only a bundle of the package ({own}) brings its own images")
    source = load_data(data, root, image_size, whole=split is Split.all)
    if split is Split.val:
        val = load_data(str(part_folder(data, "val")), root, image_size, classes=source.classes).everything()
        source = ImageData(source.name, source.train, val, source.classes)
    if split in (Split.train, Split.all):
        chosen = source.everything() if split is Split.all else source.train
        source = ImageData(source.name, source.train[:0], chosen, source.classes)
    if classes is None and bundle is not None:
        own_names = read_manifest(bundle)["about"].get("classes")
        if own_names is not None and set(source.classes) <= set(own_names):  # others are refused once the bundle is loaded
            classes = own_names
    return source if classes is None else arrange(source, classes)


def class_names(given: str | None) -> list[str] | None:
    """The names of --classes: separated by commas, or the lines of a file (with or without an @ before it)."""
    if given is None:
        return None
    file = Path(given.removeprefix("@"))
    if given.startswith("@") or file.is_file():
        try:
            parts = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--classes {given}: not a readable text file ({error})") from error
    else:
        parts = given.split(",")
    named = [part.strip() for part in parts if part.strip()]
    if len(named) < 2:
        raise InputError(f"--classes {given}: expected two names or more, a,b,c or a file with one per line")
    return named


def say_fewer(wanted: int | None, data: ImageData) -> None:
    """Nobody should believe that more images were attacked than there are."""
    if wanted is not None and wanted > len(data.test):
        err.print(
            f"--images {wanted}: {data.name} has {len(data.test)} test images; all of them are taken.", highlight=False
        )

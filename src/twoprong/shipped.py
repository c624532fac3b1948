"""The bundles that come with the package, by name: `bundles/NAME/`, and beside them test images in `NAME-test.safetensors`.

The images go with every bundle whose name is NAME or NAME-something.
"""

import os
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from twoprong.atomic import whereabouts
from twoprong.errors import BundleError

HOME = Path(str(resources.files("twoprong"))) / "bundles"
IMAGES = "-test.safetensors"


def names() -> list[str]:
    """The bundles that are in this installation."""
    return sorted(folder.name for folder in HOME.glob("[!.]*/"))


def find(bundle: str | os.PathLike[str]) -> Path:
    """Where a bundle is: at a path that exists, else in the package under that name. Raises BundleError for neither."""
    path, name = Path(bundle), str(bundle)
    if (found := whereabouts(path)).exists():
        return found
    known = names()
    if name in known:
        return HOME / name
    near = get_close_matches(path.name.lower(), known, 1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    packaged = f", or one that comes with the package: {', '.join(known)}" if known else ""
    raise BundleError(f"{path}: no such bundle{hint}; expected a bundle's directory{packaged}")


def source_of(bundle: str | os.PathLike[str]) -> str | None:
    """The name of the images that come with a bundle of the package; None for any other. Raises BundleError for none."""
    found = find(bundle).absolute()
    sources = (file.name.removesuffix(IMAGES) for file in HOME.glob(f"*{IMAGES}"))
    near = [name for name in sources if f"{found.name}-".startswith(f"{name}-")]
    return max(near, key=len, default=None) if found.parent == HOME else None


def images_of(name: str) -> Path:
    """The file with the test images (`images`, `labels`) of that name."""
    return HOME / f"{name}{IMAGES}"

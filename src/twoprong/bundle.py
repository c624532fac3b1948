"""The bundle: a fitted defence as a directory. This module is the only owner of the format (docs/bundle.md specifies it).

    manifest.json            what everything is, with the size and SHA-256 of every other file and a digest of itself
    NETWORK.safetensors      every network that is ours or whose factory is named; of others a fingerprint is kept
    detector.safetensors     kernel, reference, thresholds
    README.md                the model card

Every byte is verified before anything is used, and no file is ever unpickled. Tensors are stored packed (`storage.py`).
What the parts are is `parts.py`'s, what a manifest may say `manifest.py`'s, and `rebuild.py` makes the one from the other.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from twoprong import rebuild
from twoprong.atomic import new_directory, write_atomic
from twoprong.card import model_card
from twoprong.config import parse_config
from twoprong.detect.checks import check_settings
from twoprong.detect.detector import Detector
from twoprong.errors import BundleError, DataError
from twoprong.manifest import LARGEST, MANIFEST, check, parse
from twoprong.models.features import FeatureSource
from twoprong.parts import DETECTOR, Parts, describe, stored_networks
from twoprong.shipped import find
from twoprong.storage import file_sha256, load_tensors, save_tensors

CARD = "README.md"
BLANK = "0" * 64


def write_bundle(parts: Parts, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Write the whole directory under a temporary name, force it to the disk, then put it in the place of `path`.

    Raises BundleError where `path` exists, unless `overwrite` is set and what stands there is a bundle; and while another
    process is writing it.
    """
    manifest = describe(parts)
    parts.detector.check()
    check_settings(parts.detector, parts.config.detector)
    rebuild.check_memory(*parts.detector.reference, parts.config.detector.permutations)
    target = Path(path).absolute()
    try:
        with new_directory(target) as partial:
            check_target(path, overwrite)
            for name, module in (*stored_networks(parts).items(), (DETECTOR, parts.detector)):
                save_tensors(partial / f"{name}.safetensors", module.state_dict(), packed=True)
            _write(partial / CARD, model_card(manifest))
            manifest["files"] = {
                file.name: {"bytes": file.stat().st_size, "sha256": file_sha256(file)} for file in sorted(partial.iterdir())
            }
            text = json.dumps(manifest | {"digest": BLANK}, indent=2, sort_keys=True) + "\n"
            signed = text.replace(BLANK, _digest(text.encode()))
            check(parse(signed.encode(), target / MANIFEST), target / MANIFEST)  # what cannot be read is not written
            _write(partial / MANIFEST, signed)
    except BlockingIOError as error:
        raise BundleError(f"{path}: another process is writing it; wait for it, or choose another place") from error


def check_target(path: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise BundleError where a bundle may not be written: something is there, and it is not a bundle to overwrite."""
    target = Path(path)
    if target.exists() and not (overwrite and (target / MANIFEST).is_file()):
        wish = ", or --overwrite (overwrite=True)" * (not overwrite)
        raise BundleError(f"{path}: exists already{', and is no bundle' * overwrite}; choose another place{wish}")


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a bundle, after every file in it has been verified; of older formats as today's would be.

    Raises BundleError naming the file at fault. Here and in `read_bundle`, `path` is the bundle's directory, or the name of
    a bundle that comes with the package.
    """
    root = find(path)
    file = root / MANIFEST
    if not file.is_file():
        raise BundleError(f"{file}: missing; {root} is not a bundle" if root.is_dir() else f"{root}: no such bundle")
    if file.stat().st_size > LARGEST:
        raise BundleError(f"{file}: {file.stat().st_size:,} bytes, a manifest has at most {LARGEST:,}")
    raw = file.read_bytes()
    manifest = parse(raw, file)
    digest = manifest["digest"].encode()
    if _digest(raw.replace(digest, BLANK.encode())) != digest.decode():
        raise BundleError(f"{file}: damaged, its content does not match its digest")
    manifest = check(manifest, file)
    stored = {f"{name}.safetensors" for name, entry in manifest["parts"]["networks"].items() if entry["spec"]}
    expected, names = {*stored, f"{DETECTOR}.safetensors", CARD}, set(manifest["files"])
    if names != expected:
        raise BundleError(f"{file}: expected the files {', '.join(sorted(expected))}, it lists {sorted(names)}")
    for name, entry in manifest["files"].items():
        if not (root / name).is_file():
            raise BundleError(f"{root / name}: missing")
        if (root / name).stat().st_size != entry["bytes"] or file_sha256(root / name) != entry["sha256"]:
            raise BundleError(f"{root / name}: damaged, its content does not match the manifest")
    return manifest


def read_detector(path: str | os.PathLike[str], manifest: dict[str, Any]) -> Detector:
    """The detector of a bundle whose manifest has been read; its thresholds are the ones in force and the manifest's."""
    config = parse_config(manifest["config"])
    return rebuild.read_detector(find(path) / f"{DETECTOR}.safetensors", manifest, config, _tensors)


def read_bundle(
    path: str | os.PathLike[str],
    classifier: nn.Module | None = None,
    features: FeatureSource = None,
    allow: Iterable[str] = (),
) -> Parts:
    """Verify a bundle and rebuild its parts on the CPU.

    `classifier` is needed where it is not one of ours, `features` where they came from a callable. `allow` names modules
    whose factories the bundle may run to make its classifier.
    """
    root = find(path)
    before = _stood(root)
    try:
        manifest = read_manifest(root)
        detector = read_detector(root, manifest)
        config = parse_config(manifest["config"])
        return rebuild.assemble(root, manifest, config, detector, classifier, features, _tensors, allow)
    except BundleError:
        if _stood(root) == before:
            raise
    return read_bundle(path, classifier, features, allow)  # another process has put a new bundle there meanwhile


def _stood(root: Path) -> tuple[int, int] | None:
    """Which manifest stands there: a bundle is replaced as a whole."""
    file = root / MANIFEST
    if not file.exists():
        return None
    found = file.stat()
    return found.st_ino, found.st_mtime_ns


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(file)[0]
    except DataError as error:
        raise BundleError(str(error)) from error


def _write(file: Path, text: str) -> None:
    write_atomic(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _digest(manifest: bytes) -> str:
    """SHA-256 of the manifest's bytes with the digest's own place blanked."""
    return hashlib.sha256(manifest).hexdigest()

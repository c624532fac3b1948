"""The bundle: a fitted defence as a directory. This module is the only owner of the format (docs/bundle.md specifies it).

    manifest.json            what everything is, with the size and SHA-256 of every other file and a digest of itself
    NETWORK.safetensors      every network that is ours or whose factory is named; of others a fingerprint is kept
    detector.safetensors     kernel, reference, thresholds
    README.md                the model card

Every byte is verified before anything is used, and no file is ever unpickled. Tensors are stored packed (`storage.py`).
What the parts are, and how older formats spell them, is `parts.py`'s.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from twoprong.card import model_card
from twoprong.config import parse_config
from twoprong.detect.detector import Detector
from twoprong.errors import BundleError, ConfigError, DataError, InputError
from twoprong.models.features import FeatureSource
from twoprong.parts import DETECTOR, FORMAT, MANIFEST, READABLE, Parts, assemble, describe, stored_networks, upgraded
from twoprong.shipped import find
from twoprong.storage import file_sha256, load_tensors, save_tensors, sync

CARD = "README.md"
BLANK = "0" * 64
KEYS = {"files": dict, "preprocessing": dict, "parts": dict, "thresholds": list, "config": dict, "about": dict}


def write_bundle(parts: Parts, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Write the whole directory under a temporary name, force it to the disk, then rename it to `path`.

    Raises BundleError where `path` exists, unless `overwrite` is set and what stands there is a bundle.
    """
    check_target(path, overwrite)
    manifest = describe(parts)
    target = Path(path).absolute()
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, module in (*stored_networks(parts).items(), (DETECTOR, parts.detector)):
        save_tensors(partial / f"{name}.safetensors", module.state_dict(), packed=True)
    (partial / CARD).write_text(model_card(manifest), encoding="utf-8")
    manifest["files"] = {
        file.name: {"bytes": file.stat().st_size, "sha256": file_sha256(file)} for file in sorted(partial.iterdir())
    }
    text = json.dumps(manifest | {"digest": BLANK}, indent=2, sort_keys=True) + "\n"
    (partial / MANIFEST).write_text(text.replace(BLANK, _digest(text.encode())), encoding="utf-8")
    for file in (*partial.iterdir(), partial):
        sync(file)
    old = target.with_name(f".{target.name}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    partial.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def check_target(path: str | os.PathLike[str], overwrite: bool) -> None:
    """Raise BundleError where a bundle may not be written: something is there, and it is not a bundle to overwrite."""
    target = Path(path)
    if target.exists() and not (overwrite and (target / MANIFEST).is_file()):
        wish = "it is not a bundle; choose another place" if overwrite else "choose another place, or --overwrite"
        raise BundleError(f"{path}: exists already; {wish}")


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a bundle, after every file in it has been verified; of older formats as today's would be.

    Raises BundleError naming the file at fault. Here and in `read_bundle`, `path` is the bundle's directory, or the name of
    a bundle that comes with the package.
    """
    root = find(path)
    file = root / MANIFEST
    if not file.is_file():
        raise BundleError(f"{file}: missing; {root} is not a bundle" if root.is_dir() else f"{root}: no such bundle")
    raw = file.read_bytes()
    try:
        manifest = json.loads(raw)
        version, digest = manifest["format"], manifest["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{file}: damaged, not a bundle's manifest ({error})") from error
    if version not in READABLE:
        known = ", ".join(map(str, READABLE))
        raise BundleError(f"{file}: format {version!r}, this version of twoprong reads formats {known}; fit again")
    if not isinstance(digest, str) or len(digest) != 64 or _digest(raw.replace(digest.encode(), BLANK.encode())) != digest:
        raise BundleError(f"{file}: damaged, its content does not match its digest")
    try:
        manifest = upgraded(manifest)
        missing = [key for key in KEYS if not isinstance(manifest.get(key), KEYS[key])]
        if missing:
            raise BundleError(f"{file}: {', '.join(missing)} missing or of another kind than format {FORMAT} has")
        stored = {f"{name}.safetensors" for name, entry in manifest["parts"]["networks"].items() if entry["spec"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{file}: parts missing or of another kind than format {version} has ({error})") from error
    expected, names = {*stored, f"{DETECTOR}.safetensors", CARD}, set(manifest["files"])
    if names != expected:
        raise BundleError(f"{file}: expected the files {', '.join(sorted(expected))}, it lists {sorted(names)}")
    for name, entry in manifest["files"].items():
        if not (root / name).is_file():
            raise BundleError(f"{root / name}: missing")
        if (root / name).stat().st_size != entry["bytes"] or file_sha256(root / name) != entry["sha256"]:
            raise BundleError(f"{root / name}: damaged, its content does not match the manifest")
    return manifest


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
    manifest = read_manifest(root)
    try:
        config = parse_config(manifest["config"])
    except ConfigError as error:
        raise BundleError(f"{root / MANIFEST}: settings that this version does not know ({error})") from error
    file = root / f"{DETECTOR}.safetensors"
    try:
        detector = Detector.from_state(_tensors(file), config.detector.permutations)
    except InputError as error:
        raise BundleError(f"{file}: {error}") from error
    return assemble(root, manifest, config, detector, classifier, features, _tensors, allow)


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(file)[0]
    except DataError as error:
        raise BundleError(str(error)) from error


def _digest(manifest: bytes) -> str:
    """SHA-256 of the manifest's bytes with the digest's own place blanked."""
    return hashlib.sha256(manifest).hexdigest()

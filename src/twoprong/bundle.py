"""The bundle: a fitted defence as a directory. This module is the only owner of the format (docs/bundle.md specifies it).

    manifest.json            what everything is, with the size and SHA-256 of every other file and a digest of itself
    classifier.safetensors   only if the classifier is one of ours; otherwise its fingerprint is in the manifest
    detector.safetensors     kernel, reference, thresholds
    denoiser.safetensors
    README.md                the model card

Every byte is verified before anything is used, and no file is ever unpickled. Tensors are stored packed (`storage.py`).
"""

import hashlib
import json
import os
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from twoprong.card import model_card
from twoprong.config import FitConfig, parse_config
from twoprong.detect.detector import Detector
from twoprong.errors import BundleError, ConfigError, DataError, InputError
from twoprong.models.dunet import DUNet
from twoprong.models.features import FeatureSource
from twoprong.models.layout import channels_last
from twoprong.models.zoo import ModelSpec, build
from twoprong.shipped import find
from twoprong.storage import file_sha256, fingerprint, load_tensors, save_tensors, sync

FORMAT = 2
READABLE = (1, FORMAT)  # in format 1 no tensor was packed
BEFORE = {"kernel": {"projections": [0]}, "denoiser": {"guide": "detector"}}  # as it was before there was a choice
MANIFEST = "manifest.json"
CARD = "README.md"
TENSOR_FILES = ("classifier.safetensors", "detector.safetensors", "denoiser.safetensors")
BLANK = "0" * 64
KEYS = {"files": dict, "preprocessing": dict, "classifier": dict, "thresholds": list, "config": dict, "about": dict}


@dataclass(frozen=True)
class Parts:
    """All that a Defense is made of, and all that a bundle keeps."""

    classifier: nn.Module
    detector: Detector
    denoiser: DUNet
    config: FitConfig
    features: FeatureSource
    about: dict[str, Any]


def write_bundle(parts: Parts, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Write the whole directory under a temporary name, force it to the disk, then rename it to `path`.

    Raises BundleError where `path` exists, unless `overwrite` is set and what stands there is a bundle.
    """
    check_target(path, overwrite)
    target = Path(path).absolute()
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    spec = getattr(parts.classifier, "spec", None)
    for name, module in zip(TENSOR_FILES, (parts.classifier, parts.detector, parts.denoiser), strict=True):
        if module is not parts.classifier or spec is not None:
            save_tensors(partial / name, module.state_dict(), packed=True)
    manifest = _describe(parts, spec)
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
    """The manifest of a bundle, after every file in it has been verified. Raises BundleError naming the file at fault.

    Here and in `read_bundle`, `path` is the bundle's directory, or the name of a bundle that comes with the package.
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
        known = " and ".join(map(str, READABLE))
        raise BundleError(f"{file}: format {version!r}, this version of twoprong reads formats {known}; fit again")
    if not isinstance(digest, str) or len(digest) != 64 or _digest(raw.replace(digest.encode(), BLANK.encode())) != digest:
        raise BundleError(f"{file}: damaged, its content does not match its digest")
    missing = [key for key in KEYS if not isinstance(manifest.get(key), KEYS[key])]
    if missing:
        raise BundleError(f"{file}: {', '.join(missing)} missing or of another kind than format {version} has")
    names = set(manifest["files"])
    if not {*TENSOR_FILES[1:], CARD} <= names <= {*TENSOR_FILES, CARD}:
        raise BundleError(f"{file}: expected the files {', '.join([*TENSOR_FILES, CARD])}, it lists {sorted(names)}")
    for name, entry in manifest["files"].items():
        if not (root / name).is_file():
            raise BundleError(f"{root / name}: missing")
        if (root / name).stat().st_size != entry["bytes"] or file_sha256(root / name) != entry["sha256"]:
            raise BundleError(f"{root / name}: damaged, its content does not match the manifest")
    return cast(dict[str, Any], manifest)


def read_bundle(path: str | os.PathLike[str], classifier: nn.Module | None = None, features: FeatureSource = None) -> Parts:
    """Verify a bundle and rebuild its parts on the CPU.

    `classifier` is needed where it is not one of ours, `features` where they came from a callable.
    """
    root = find(path)
    manifest = read_manifest(root)
    try:
        config = parse_config(_with_older_settings(manifest["config"]))
    except ConfigError as error:
        raise BundleError(f"{root / MANIFEST}: settings that this version does not know ({error})") from error
    classifier = _classifier(root, manifest["classifier"], classifier)
    source = _feature_source(root, manifest.get("features"))
    if source != "callable" and features is not None:
        raise BundleError(f"{root}: fitted on the features of {source or 'the last Linear layer'}; leave features= out")
    if source == "callable" and features is None:
        raise BundleError(f"{root}: fitted with a callable for features; pass the same one: load(..., features=...)")
    state = _tensors(root / "detector.safetensors")
    try:
        detector = Detector.from_state(state, config.detector.permutations)
    except InputError as error:
        raise BundleError(f"{root / 'detector.safetensors'}: {error}") from error
    denoiser = DUNet(manifest["preprocessing"]["channels"], config.denoiser.width)
    _fill(denoiser, root / "denoiser.safetensors")
    denoiser = channels_last(denoiser).requires_grad_(False)
    return Parts(classifier, detector, denoiser, config, features if source == "callable" else source, manifest["about"])


def _with_older_settings(config: dict[str, Any]) -> dict[str, Any]:
    """A manifest's settings, and what it was fitted by where it is older than a setting whose default is another."""
    older = {name: BEFORE[name] | config[name] for name in BEFORE if isinstance(config.get(name), dict)}
    return config | older


def _feature_source(root: Path, named: Any) -> str | tuple[str, ...] | None:
    """The features' source as the manifest has it: nothing, a name, or a list of names."""
    if named is None or isinstance(named, str):
        return named
    if isinstance(named, list) and named and all(isinstance(name, str) for name in named):
        return tuple(named)
    raise BundleError(f"{root / MANIFEST}: features: expected a layer's name or a list of names, got {named!r}")


def _describe(parts: Parts, spec: ModelSpec | None) -> dict[str, Any]:
    table = parts.detector.thresholds
    channels, height, width = parts.detector.reference_pixels.shape[1:]
    return {
        "format": FORMAT,
        "preprocessing": {"channels": channels, "height": height, "width": width, "range": [0, 1]},
        "classifier": {
            "type": f"{type(parts.classifier).__module__}.{type(parts.classifier).__qualname__}",
            "spec": asdict(spec) if spec else None,
            "fingerprint": fingerprint(parts.classifier),
        },
        "features": "callable" if callable(parts.features) else parts.features,
        "thresholds": [
            {"batch_size": int(size), "threshold": float(upper), "central": float(central)}
            for size, upper, central in zip(*table, strict=True)
        ],
        "config": parts.config.model_dump(mode="json"),
        "about": parts.about,
        "versions": {
            "twoprong": metadata.version("twoprong"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _classifier(root: Path, entry: dict[str, Any], given: nn.Module | None) -> nn.Module:
    if given is None:
        if entry["spec"] is None:
            raise BundleError(f"{root}: the classifier ({entry['type']}) is not in the bundle; load(..., classifier=...)")
        given = build(**entry["spec"])
        _fill(given, root / "classifier.safetensors")
        given = channels_last(given).requires_grad_(False)
    if fingerprint(given) != entry["fingerprint"]:
        raise BundleError(
            f"{root}: the classifier given is not the one it was fitted around ({entry['type']}): other weights"
        )
    return given


def _fill(module: nn.Module, file: Path) -> None:
    try:
        module.load_state_dict(_tensors(file))
    except RuntimeError as error:
        raise BundleError(f"{file}: {' '.join(str(error).split())}") from error


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(file)[0]
    except DataError as error:
        raise BundleError(str(error)) from error


def _digest(manifest: bytes) -> str:
    """SHA-256 of the manifest's bytes with the digest's own place blanked."""
    return hashlib.sha256(manifest).hexdigest()

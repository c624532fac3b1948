"""Whether a fit that is to be resumed has written its bundle already."""

from pathlib import Path
from typing import Any

from twoprong.bundle import read_manifest
from twoprong.card import classifier_name, protected
from twoprong.cli.arguments.fit import FitArguments
from twoprong.config import FitConfig
from twoprong.data.splits import split
from twoprong.data.tensors import ImageData
from twoprong.errors import BundleError, DataError
from twoprong.storage import load_tensors, state_fingerprint


def is_finished(given: FitArguments, settings: FitConfig, images: ImageData) -> bool:
    """Whether --resume finds a bundle of these settings, this classifier and these very images; in doubt it does not."""
    if not given.resume or given.overwrite or not given.bundle.exists():
        return False
    try:
        manifest = read_manifest(given.bundle)
        same = _same_classifier(manifest, given.classifier, given.weights)
    except (BundleError, DataError):
        return False
    train, about = images.train, manifest["about"]
    with_own = (split(train, settings.splits, settings.seed, held_out) for held_out in (None, train))
    return (
        same
        and manifest["config"] == settings.model_dump(mode="json")
        and about.get("classes") == list(images.classes)
        and any(_kept(parts.hashes()) == _kept(about.get("split_hashes", {})) for parts in with_own)
    )


def _same_classifier(manifest: dict[str, Any], name: str, weights: Path | None) -> bool:
    if weights is None:  # trained here, from these images and settings; a factory's weights nobody knows
        return classifier_name(manifest) == name
    return protected(manifest)["fingerprint"] == state_fingerprint(load_tensors(weights)[0])


def _kept(hashes: dict[str, str]) -> tuple[str | None, ...]:
    """The parts that always come out of --data, whatever is held out."""
    return hashes.get("denoiser"), hashes.get("kernel")

"""Whether a fit that is to be resumed has written its bundle already."""

from pathlib import Path
from typing import Any

from twoprong.bundle import read_manifest
from twoprong.card import protected
from twoprong.cli.arguments.fit import FitArguments
from twoprong.cli.classifier import Normalisation, get_trained, trained_here
from twoprong.config import FitConfig
from twoprong.data.splits import split
from twoprong.data.tensors import ImageData, Labelled
from twoprong.errors import BundleError, DataError, InputError
from twoprong.robust.run import load_weights as read_robust
from twoprong.storage import fingerprint


def is_finished(
    given: FitArguments, settings: FitConfig, images: ImageData, held_out: Labelled | None, precision: str
) -> bool:
    """Whether --resume finds a bundle of these settings, this classifier and these very images; in doubt it does not."""
    if not given.resume or given.overwrite or not given.bundle.exists():
        return False
    try:
        manifest = read_manifest(given.bundle)
        about = manifest["about"]
        return (
            manifest["config"] == settings.model_dump(mode="json")
            and about.get("precision") == precision
            and about.get("classes") == list(images.classes)
            and about.get("split_hashes") == split(images.train, settings.splits, settings.seed, held_out).hashes()
            and _same_classifier(manifest, given, images)
            and _same_robust(manifest, given.robust_weights)
        )
    except (BundleError, DataError, InputError):
        return False


def _same_classifier(manifest: dict[str, Any], given: FitArguments, images: ImageData) -> bool:
    entry = protected(manifest)
    if trained_here(given.classifier, given.weights):  # from these images and settings
        return entry["kind"] == "classifier" and entry["spec"]["name"] == given.classifier
    normalisation = Normalisation(given.mean, given.std)
    model = get_trained(given.classifier, given.weights, images, given.weights_inside, normalisation)
    return bool(entry["fingerprint"] == fingerprint(model))


def _same_robust(manifest: dict[str, Any], weights: Path | None) -> bool:
    if weights is None:  # trained here, if at all
        return True
    entry = manifest["parts"]["networks"].get("robust")
    return entry is not None and entry["fingerprint"] == fingerprint(read_robust(weights))

"""`fit`: from a classifier and clean images to a Defense, step by step."""

import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from twoprong.attacks.craft import craft
from twoprong.checkpoint import Checkpoint
from twoprong.choices import check_choice
from twoprong.config import FitConfig, as_config
from twoprong.data.images import ImageLike
from twoprong.data.splits import split
from twoprong.data.tensors import Labelled, as_labelled
from twoprong.defense import Defense
from twoprong.detect.detector import Detector
from twoprong.detect.fit import fit_kernel
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.errors import InputError
from twoprong.models.dunet import DUNet
from twoprong.models.fast import fast
from twoprong.models.features import Features, FeatureSource
from twoprong.models.modes import evaluating
from twoprong.models.precision import Precision, compiler_for
from twoprong.models.train import train_classifier
from twoprong.progress import Progress, showing, silent
from twoprong.purify.train import train_denoiser
from twoprong.routes import Denoised, Direct
from twoprong.storage import fingerprint

CHECKPOINTS = "checkpoints"  # the sub-directory of the working directory that is ours to delete

Images = ImageLike | Labelled | Dataset[Any] | DataLoader[Any]
Labels = Tensor | np.ndarray | Sequence[int]


def fit(
    classifier: nn.Module,
    images: Images,
    labels: Labels | None = None,
    config: FitConfig | Mapping[str, Any] | str | PathLike[str] | None = None,
    *,
    features: FeatureSource | Features = None,
    held_out: Labelled | Dataset[Any] | DataLoader[Any] | None = None,
    work: str | PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    precision: Precision = "fp32",
) -> Defense:
    """Put the two-pronged defence around a trained classifier.

    `classifier` maps images in [0,1] to logits (normalisation inside). `images` are clean: tensors, arrays or lists (as a
    Defense takes them) with `labels`, or a Dataset or DataLoader of (image, label). Reference and calibration images should
    be unseen by the classifier, or fresh images will look different from them: give such images as `held_out` where
    `images` are its training set. `config` may also be a dict of settings or the path of a TOML file.
    `features` overrides config.detector.features; it may be a callable, or another network's extractor (`Features(net)`).
    With `work`, crafted examples and checkpoints go to that directory and `resume=True` continues a killed run to the same
    result. The classifier keeps its weights and is in eval mode afterwards. With `precision="bf16"` crafting and the
    denoiser's training compute in it, compiled on a GPU; the kernel, the test and the features it sees stay in float32.
    `progress` is a listener; None draws bars on a terminal, False draws nothing.
    """
    config = as_config(config)
    check_choice("precision", precision, get_args(Precision))
    extract = seen = _extractor(classifier, config.detector.features if features is None else features)
    if extract.classifier is not classifier:  # what the denoiser learns from: the classifier's logits, the test's features
        seen = Features(classifier, lambda images: extract(images)[1])
    data = as_labelled(images, labels)
    with showing(progress) as listen, evaluating(classifier), evaluating(extract):
        _check_classifier(seen, data)
        unseen = None if held_out is None else as_labelled(held_out)
        if unseen is not None and unseen.images.shape[1:] != data.images.shape[1:]:
            raise InputError(
                f"held_out: expected images of {tuple(data.images.shape[1:])}, like the others, "
                f"got {tuple(unseen.images.shape[1:])}"
            )
        parts = split(data, config.splits, config.seed, unseen)
        folder = None if work is None else Path(work)

        quick = seen
        if precision == "bf16" and (seen.source is None or callable(seen.source)):
            quick = Features(fast(classifier, compiler_for(precision, data.images)), seen.source)
        attacked = craft(quick.classifier, parts.kernel, config.attack, folder, listen, "craft for the kernel")
        clean_sample = sample(extract, parts.kernel.images)
        kernel = guide = fit_kernel(clean_sample, sample(extract, attacked), config.kernel, config.seed, listen)
        if config.denoiser.guide == "median":
            guide = DeepKernel.from_median(clean_sample, config.kernel.beta0).to(attacked.device).requires_grad_(False)

        to_denoise = craft(quick.classifier, parts.denoiser, config.attack, folder, listen, "craft for the denoiser")
        settings = [config.denoiser.model_dump(), config.seed, to_denoise.device.type, precision]
        key = fingerprint(guide, classifier, to_denoise, parts.denoiser.labels, settings)
        checkpoint = Checkpoint(None if folder is None else folder / CHECKPOINTS / "denoiser.safetensors", key, resume)
        denoiser = train_denoiser(
            sample(extract, parts.denoiser.images),
            to_denoise,
            parts.denoiser.labels,
            quick,
            guide,
            config.denoiser,
            config.seed,
            checkpoint,
            listen,
            precision,
        )

        detector = Detector(kernel, sample(extract, parts.reference.images), config.detector.permutations)
        detector.calibrate(sample(extract, parts.calibration.images), config.detector, config.seed, listen)

    sizes = {name: len(part) for name, part in vars(parts).items()}
    about: dict[str, Any] = {
        "fitted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "precision": precision,
        "split_sizes": sizes,
        "split_hashes": parts.hashes(),
    }
    return paper_defense(classifier, extract, detector, denoiser, config, about)


def paper_defense(
    classifier: nn.Module,
    extractor: Features,
    detector: Detector,
    denoiser: DUNet,
    config: FitConfig,
    about: dict[str, Any] | None = None,
) -> Defense:
    """The paper's mode: what passes goes to the classifier, what is flagged through noise and denoiser first."""
    flagged = Denoised(classifier, denoiser, config.denoiser.sigma, config.denoiser.noise)
    return Defense(extractor, detector, Direct(classifier), flagged, config, about)


def train_named(
    name: str,
    data: Labelled,
    classes: int,
    config: FitConfig,
    work: str | PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress = silent,
    precision: Precision = "fp32",
) -> nn.Module:
    """Train one of our classifiers on the part of the images that `fit`, given the same images, leaves the denoiser.

    So reference and calibration images are unseen by the classifier too.
    """
    part = split(data, config.splits, config.seed).denoiser
    settings = [config.classifier.model_dump(), config.seed, part.images.device.type, precision]
    key = fingerprint(name, classes, part.images, part.labels, settings)
    checkpoint = Checkpoint(None if work is None else Path(work) / CHECKPOINTS / "classifier.safetensors", key, resume)
    return train_classifier(name, classes, part, config.classifier, config.seed, checkpoint, progress, precision=precision)


@torch.no_grad()
def sample(extract: Features, images: Tensor, size: int = 500) -> Sample:
    """What the kernel sees of any number of images, in chunks of `size`."""
    return Sample(images, torch.cat([extract(chunk)[1] for chunk in images.split(size)]))


def _extractor(classifier: nn.Module, features: FeatureSource | Features) -> Features:
    return features if isinstance(features, Features) else Features(classifier, features)


@torch.no_grad()
def _check_classifier(extract: Features, data: Labelled) -> None:
    """Two images through the classifier, so that a wrong shape or a wrong number of classes is said before hours of work."""
    try:
        logits, _ = extract(data.images[:2])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        shape = tuple(data.images.shape[1:])
        raise InputError(
            f"classifier: cannot take images of (channels, height, width) = {shape}: {str(error).splitlines()[0]}"
        ) from error
    if logits.ndim != 2 or len(logits) != min(2, len(data)):
        raise InputError(f"classifier: expected logits (images, classes), got shape {tuple(logits.shape)}")
    if int(data.labels.max()) >= logits.shape[1]:
        raise InputError(
            f"labels: expected 0 to {logits.shape[1] - 1}, the classifier's classes, got {int(data.labels.max())}"
        )

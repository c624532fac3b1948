"""`fit`: from a classifier and clean images to a Defense, step by step."""

import logging
import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from twoprong.attacks.craft import craft
from twoprong.checkpoint import Checkpoint
from twoprong.checks import check_accuracy, check_classifier, check_held_out, check_test
from twoprong.choices import check_choice
from twoprong.config import AttackConfig, FitConfig
from twoprong.data.images import ImageLike
from twoprong.data.splits import Splits, split
from twoprong.data.tensors import Labelled, as_labelled
from twoprong.defense import Defense
from twoprong.detect.blame import Examples, weaker
from twoprong.detect.detector import Detector
from twoprong.detect.fit import fit_kernel
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.errors import InputError
from twoprong.fitted import measure_fit, measure_layers
from twoprong.models.dunet import DUNet
from twoprong.models.fast import fast
from twoprong.models.features import Features, FeatureSource
from twoprong.models.modes import evaluating
from twoprong.models.precision import Precision, compiler_for
from twoprong.models.train import train_classifier
from twoprong.models.zoo import ModelSpec
from twoprong.presets import as_config
from twoprong.progress import Progress, showing, silent
from twoprong.purify.train import train_denoiser
from twoprong.robust.gate import choose_tau, lead
from twoprong.robust.settings import RobustConfig
from twoprong.robust.train import as_classifier, train_robust
from twoprong.routes import Denoised, Direct, Gated, Robust, Route
from twoprong.storage import fingerprint

TINY_STEPS = 3  # of an attacker whose budget is a fraction of the defence's
CHECKPOINTS = "checkpoints"  # the sub-directory of the working directory that is ours to delete

log = logging.getLogger("twoprong")

Images = ImageLike | Labelled | Dataset[Any] | DataLoader[Any]
Labels = Tensor | np.ndarray | Sequence[int]


def fit(
    classifier: nn.Module,
    images: Images,
    labels: Labels | None = None,
    config: FitConfig | Mapping[str, Any] | str | PathLike[str] | None = None,
    *,
    features: FeatureSource | Features = None,
    held_out: Labelled | Dataset[Any] | DataLoader[Any] | Literal["none"] | None = None,
    test: Labelled | Dataset[Any] | DataLoader[Any] | None = None,
    classes: Sequence[str] | None = None,
    force: bool = False,
    work: str | PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    precision: Precision = "fp32",
    measure: bool = True,
    robust: nn.Module | None = None,
) -> Defense:
    """Put the two-pronged defence around a trained classifier: the paper's, or the hardened one (config.mode).

    `classifier` maps images in [0,1] to logits (normalisation inside). `images` are clean: tensors, arrays or lists (as a
    Defense takes them) with `labels`, or a Dataset or DataLoader of (image, label). Reference and calibration images should
    be unseen by the classifier, or fresh images will look different from them: give such images as `held_out` where
    `images` are its training set, or "none" where it has learned none of them. `classes` are the names of its outputs, in
    order. A classifier that does no better than chance, or is nearly always wrong on some class, is refused unless `force`
    is set; so are held-out or test images that are in another part, too. `config` may also be a dict of settings, the name
    of a preset ("paper") or the path of a TOML file.
    At the end `about["measured"]` says what was bought, on `test` (images that nobody has learned), or else on the
    calibration images; `measure=False` leaves it out.
    `features` overrides config.detector.features and .extractor; it may be a callable, or another network's extractor
    (`Features(net)`).
    With `work`, crafted examples and checkpoints go to that directory and `resume=True` continues a killed run to the same
    result. The classifier keeps its weights and is in eval mode afterwards. With `precision="bf16"` crafting and the
    denoiser's training compute in it, compiled on a GPU; the kernel, the test and the features it sees stay in float32.
    `progress` is a listener; None draws bars on a terminal, False draws nothing. `robust` is a robust network for the
    hardened mode; None trains one.
    """
    config = as_config(config)
    check_choice("precision", precision, get_args(Precision))
    data = as_labelled(images, labels)
    if config.mode == "hardened" and robust is None:
        _architecture(classifier, config)  # before the work: it may refuse
    if features is None and config.detector.extractor is not None:
        count = int(data.labels.max()) + 1 if classes is None else len(classes)
        with showing(progress) as listen:
            named = config.detector.extractor
            other = train_named(named, data, count, config, work, resume, listen, precision, stage="extractor")
        features = Features(other)
    extract = seen = _extractor(classifier, config.detector.features if features is None else features)
    if extract.classifier is not classifier:  # what the denoiser learns from: the classifier's logits, the test's features
        seen = Features(classifier, lambda images: extract(images)[1])
    with showing(progress) as listen, evaluating(classifier), evaluating(extract):
        check_classifier(seen, data, classes)
        unseen = _held_out(held_out, data, classifier, force)
        check_accuracy(seen, data, classes, force)
        parts = split(data, config.splits, config.seed, unseen)
        part, images_are = _to_measure(test, data, unseen, parts, force)
        folder = None if work is None else Path(work)

        quick = seen
        if precision == "bf16" and (seen.source is None or callable(seen.source)):
            quick = Features(fast(classifier, compiler_for(precision, data.images)), seen.source)
        attacked = craft(quick.classifier, parts.kernel, config.attack, folder, listen, "craft for the kernel")
        clean_sample = sample(extract, parts.kernel.images)
        kernel = guide = fit_kernel(clean_sample, sample(extract, attacked), config.kernel, config.seed, listen)
        if config.denoiser.guide == "median":
            start = DeepKernel.from_median(clean_sample, config.kernel.beta0, None, config.kernel.pixel_bandwidth)
            guide = start.to(attacked.device).requires_grad_(False)

        reference = parts.kernel if config.detector.reference == "kernel" else parts.reference
        seen_by_test = sample(extract, reference.images)
        detector = Detector(kernel, seen_by_test, config.detector.permutations, config.detector.statistic)
        examples = Examples(clean_sample, sample(extract, weaker(parts.kernel.images, attacked)))
        unlearned = sample(extract, parts.calibration.images)
        detector.calibrate(unlearned, config.detector, config.seed, listen, examples)  # before the long part: it may refuse

        if config.mode == "hardened":
            passing, flagged, chosen = _hardened(classifier, robust, parts, config, folder, resume, listen, precision)
        else:
            passing, flagged, chosen = _paper(
                classifier, quick, extract, guide, parts, config, folder, resume, listen, precision
            )
        about: dict[str, Any] = {
            "fitted": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "precision": precision,
            "split_sizes": {name: len(part) for name, part in vars(parts).items()},
            "split_hashes": parts.hashes(),
            **chosen,
        }
        if classes is not None:
            about["classes"] = list(classes)
        defense = Defense(extract, detector, passing, flagged, config, about)
        if measure:

            def attack(some: Labelled) -> Tensor:
                return craft(quick.classifier, some, config.attack, folder, listen, "craft to measure")

            if (fitted := measure_fit(defense, part, images_are, attack, config.seed)) is not None:
                facts = fitted.facts() | (measure_layers(defense, part, config.seed) if defense.layered else {})
                defense.about |= {"measured": facts, "measured_values": fitted.as_dict()}
    return defense.eval()


Routes = tuple[Route, Route, dict[str, Any]]  # passing, flagged, and what else is to be known of them


def _paper(
    classifier: nn.Module,
    quick: Features,
    extract: Features,
    guide: DeepKernel,
    parts: Splits,
    config: FitConfig,
    folder: Path | None,
    resume: bool,
    listen: Progress,
    precision: Precision,
) -> Routes:
    """What passes goes to the classifier, what is flagged through noise and a denoiser, which is trained here."""
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
    return *paper_routes(classifier, denoiser, config), {}


def _hardened(
    classifier: nn.Module,
    robust: nn.Module | None,
    parts: Splits,
    config: FitConfig,
    folder: Path | None,
    resume: bool,
    listen: Progress,
    precision: Precision,
) -> Routes:
    """What passes goes to the gate, what is flagged to the robust network alone.

    The network learns from the part that a denoiser would, its epoch is chosen on the kernel's part, and the gate's
    threshold on the calibration part, of which neither network has learned anything.
    """
    if robust is None:
        with torch.no_grad():
            classes = classifier(parts.kernel.images[:1]).shape[1]
        settings = RobustConfig.model_validate(
            {**config.robust.model_dump(), "model": _architecture(classifier, config), "attack": config.attack}
        )
        place = None if folder is None else folder / CHECKPOINTS / "robust"
        robust = train_robust(
            settings, parts.denoiser, parts.kernel, classes, config.seed, classifier, place, resume, listen, precision
        )
    part = parts.calibration
    robust = robust.to(part.images.device).eval().requires_grad_(False)
    with torch.no_grad():
        sure, answers = (torch.cat([net(x) for x in part.images.split(500)]) for net in (robust, classifier))
    right, accurate = (logits.argmax(1) == part.labels for logits in (sure, answers))
    tau = choose_tau(lead(sure.softmax(1)), right, accurate, config.balance)
    log.info("gate: tau %.4f", tau)
    return Gated(classifier, robust, tau), Robust(robust), {"tau": tau}


def _architecture(classifier: nn.Module, config: FitConfig) -> str:
    """The name of the robust network's architecture: the classifier's own, unless the settings say another."""
    spec = getattr(classifier, "spec", None)
    if config.robust.model != "same":
        return config.robust.model
    if not isinstance(spec, ModelSpec):
        raise InputError(
            "robust.model: expected the name of one of our architectures, because the classifier is not one of ours; "
            "set robust.model=resnet18-silu, or give a robust network"
        )
    return spec.name


def paper_defense(
    classifier: nn.Module,
    extractor: Features,
    detector: Detector,
    denoiser: DUNet,
    config: FitConfig,
    about: dict[str, Any] | None = None,
) -> Defense:
    """A defence in the paper's mode, of parts that are there already."""
    return Defense(extractor, detector, *paper_routes(classifier, denoiser, config), config, about)


def paper_routes(classifier: nn.Module, denoiser: DUNet, config: FitConfig) -> tuple[Direct, Denoised]:
    """What passes goes to the classifier, what is flagged through noise and denoiser first."""
    how = config.denoiser
    return Direct(classifier), Denoised(classifier, denoiser, how.sigma, how.noise, how.clamp)


def train_named(
    name: str,
    data: Labelled,
    classes: int,
    config: FitConfig,
    work: str | PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress = silent,
    precision: Precision = "fp32",
    stage: str = "classifier",
) -> nn.Module:
    """Train one of our classifiers on the part of the images that `fit`, given the same images, leaves the denoiser.

    So reference and calibration images are unseen by the classifier too. `stage` names its checkpoint.
    """
    parts = split(data, config.splits, config.seed)
    part = parts.denoiser
    if config.classifier.eps:
        attack = AttackConfig(norm=config.attack.norm, eps=config.classifier.eps, steps=TINY_STEPS)
        place = None if work is None else Path(work) / CHECKPOINTS / stage
        made = as_classifier("at", name, config.classifier, attack)
        return train_robust(made, part, parts.kernel, classes, config.seed, None, place, resume, progress, precision, stage)
    settings = [config.classifier.model_dump(), config.seed, part.images.device.type, precision]
    key = fingerprint(name, classes, part.images, part.labels, settings)
    checkpoint = Checkpoint(None if work is None else Path(work) / CHECKPOINTS / f"{stage}.safetensors", key, resume)
    return train_classifier(name, classes, part, config.classifier, config.seed, checkpoint, progress, precision=precision)


@torch.no_grad()
def sample(extract: Features, images: Tensor, size: int = 500) -> Sample:
    """What the kernel sees of any number of images, in chunks of `size`."""
    return Sample(images, torch.cat([extract(chunk)[1] for chunk in images.split(size)]))


def _held_out(held_out: Any, data: Labelled, classifier: nn.Module, force: bool) -> Labelled | None:
    """The held-out images, checked. InputError without the choice for a classifier that we did not train."""
    if held_out is None and not isinstance(getattr(classifier, "spec", None), ModelSpec):
        message = (
            "held_out: expected a choice, because the classifier was trained elsewhere. Which images has it not learned? "
            'Pass held_out=..., images that it has not learned, or held_out="none" if it has learned none of those given. '
            "New batches look adversarial if it has learned the reference. To go on all the same: force=True"
        )
        if not force:
            raise InputError(message)
        log.warning(message)
    if held_out is None or isinstance(held_out, str):
        check_choice("held_out", held_out or "none", ("none",))
        return None
    unseen = as_labelled(held_out)
    check_held_out(data, unseen, force)
    return unseen


def _to_measure(test: Any, data: Labelled, unseen: Labelled | None, parts: Splits, force: bool) -> tuple[Labelled, str]:
    """What the finished defence is measured on, checked before the work, and what to call it."""
    if test is None:
        return parts.calibration, "calibration images, which the thresholds were set on: false alarms are optimistic"
    part = as_labelled(test)
    copies = check_test(part, data, unseen, force)
    return part, f"test images{f', of which {copies:,} are not new to the defence' if copies else ''}"


def _extractor(classifier: nn.Module, features: FeatureSource | Features) -> Features:
    return features if isinstance(features, Features) else Features(classifier, features)

"""The classifier that a command names: one of ours, trained here or with weights, or the user's own factory."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from twoprong.config import FitConfig
from twoprong.data.tensors import ImageData
from twoprong.defense import Defense, load
from twoprong.errors import InputError
from twoprong.models.layout import channels_last
from twoprong.models.precision import Precision
from twoprong.models.zoo import build
from twoprong.progress import Progress
from twoprong.recipe import train_named
from twoprong.storage import load_tensors


@dataclass(frozen=True)
class Training:
    """How a classifier that comes without weights is trained, and where its checkpoints go."""

    config: FitConfig
    work: Path
    resume: bool
    progress: Progress
    precision: Precision


def get_classifier(name: str, weights: Path | None, data: ImageData, training: Training) -> nn.Module:
    """A frozen classifier in eval mode, on the data's device.

    `NAME` without weights is trained on the part of the data that leaves reference and calibration unseen; a
    `module:factory` is imported (the current directory first) and taken as it comes. For commands that go on to learn from
    the data: raises InputError where it has test images only.
    """
    if len(data.train) == 0:
        raise InputError(
            f"--data {data.name}: expected images to learn from, it has {len(data.test)} test images only; "
            "give a data set with a training part"
        )
    if ":" not in name and weights is None:
        how = training
        return train_named(
            name, data.train, len(data.classes), how.config, how.work, how.resume, how.progress, how.precision
        )
    return get_trained(name, weights, data)


def get_trained(name: str, weights: Path | None, data: ImageData) -> nn.Module:
    """A classifier that needs no training: a `NAME` with weights, or a `MODULE:FACTORY` with or without."""
    if ":" not in name and weights is None:
        raise InputError(f"--classifier {name}: expected its trained weights beside it; pass --weights FILE.safetensors")
    model = from_factory(name) if ":" in name else build(name, len(data.classes), data.train.images.shape[1])
    if weights is not None:
        try:
            model.load_state_dict(load_tensors(weights)[0])
        except RuntimeError as error:
            first = " ".join(str(error).split())[:200]
            raise InputError(f"--weights {weights}: these are not {name}'s weights ({first})") from error
    return channels_last(model.to(data.train.images.device)).eval().requires_grad_(False)


def get_defense(bundle: Path, classifier: nn.Module | None, data: ImageData) -> Defense:
    """The bundle's defence on the data's device. Raises InputError where its images or classes are not the data's."""
    defense = load(bundle, classifier, device=data.test.images.device)
    expected, got = tuple(defense.reference_images().shape[1:]), tuple(data.test.images.shape[1:])
    if expected != got:
        raise InputError(f"--data: expected images of {expected}, as {bundle} was fitted on, got {got}")
    classes = defense.about.get("classes")
    if classes is not None and list(data.classes) != list(classes):
        raise InputError(f"--data: expected the classes {', '.join(classes)}, as in {bundle}, got {', '.join(data.classes)}")
    return defense


def from_factory(name: str) -> nn.Module:
    """Import `module:factory` and call it. Raises InputError for what cannot be imported, called, or is no module."""
    module, _, factory = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        made = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"--classifier {name}: expected MODULE:FACTORY, a function without arguments ({error})") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"--classifier {name}: expected a torch.nn.Module, got {type(made).__name__}")
    return made

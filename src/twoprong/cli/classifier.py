"""The classifier that a command names: one of ours, trained here or with weights, or another package's or the user's own."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from twoprong.config import FitConfig, as_number
from twoprong.data.tensors import ImageData
from twoprong.defense import Defense, load
from twoprong.errors import InputError
from twoprong.models.adapters import Adapted, Origin, adapted, origin_of, remember
from twoprong.models.layout import channels_last
from twoprong.models.precision import Precision
from twoprong.models.weights import load_weights
from twoprong.models.zoo import build
from twoprong.progress import Progress
from twoprong.recipe import train_named


@dataclass(frozen=True)
class Training:
    """How a classifier that comes without weights is trained, and where its checkpoints go."""

    config: FitConfig
    work: Path
    resume: bool
    progress: Progress
    precision: Precision


@dataclass(frozen=True)
class Normalisation:
    """What --mean and --std say, as texts."""

    mean: str | None = None
    std: str | None = None

    def numbers(self) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
        return _numbers("--mean", self.mean), _numbers("--std", self.std)


AS_IT_COMES = Normalisation()


def trained_here(name: str, weights: Path | None) -> bool:
    return ":" not in name and weights is None


def get_classifier(
    name: str,
    weights: Path | None,
    data: ImageData,
    training: Training,
    inside: bool = False,
    normalisation: Normalisation = AS_IT_COMES,
) -> nn.Module:
    """A frozen classifier in eval mode, on the data's device.

    `NAME` without weights is trained on the part of the data that leaves reference and calibration unseen; others are taken
    as `get_trained` gives them. For commands that go on to learn from the data: raises InputError where it has test images
    only.
    """
    if len(data.train) == 0:
        raise InputError(
            f"--data {data.name}: expected images to learn from, it has {len(data.test)} test images only; "
            "give a data set with a training part"
        )
    if not trained_here(name, weights):
        return get_trained(name, weights, data, inside, normalisation)
    _ours(name, inside, normalisation)
    _answers(name, build(name, len(data.classes), data.train.images.shape[1]).to(data.train.images.device), data)
    how = training
    return train_named(name, data.train, len(data.classes), how.config, how.work, how.resume, how.progress, how.precision)


def get_trained(
    name: str,
    weights: Path | None,
    data: ImageData,
    inside: bool = False,
    normalisation: Normalisation = AS_IT_COMES,
) -> nn.Module:
    """A classifier that needs no training: a `NAME` with weights, or one that an adapter makes.

    Raises InputError for a factory without weights, unless `inside` says that its network is trained, and for a network
    that cannot take the images.
    """
    if trained_here(name, weights):
        raise InputError(f"--classifier {name}: expected its trained weights beside it; pass --weights FILE")
    where, classes = data.test.images.device, len(data.classes)
    if ":" in name:
        current_directory_first()
        model, trained = adapted(name, classes, *normalisation.numbers())
        if weights is None and not trained and not inside:
            raise InputError(
                f"--classifier {name}: expected --weights FILE beside it: its weights would be the random ones it starts "
                "with; if the factory returns a trained network, say so: --weights-inside"
            )
    else:
        _ours(name, inside, normalisation)
        model = build(name, classes, data.test.images.shape[1])
    if weights is not None:
        load_weights(model.network if isinstance(model, Adapted) else model, weights, name)
    model = channels_last(model.to(where)).eval().requires_grad_(False)
    if not isinstance(_answers(name, model, data), Tensor):
        origin = origin_of(model)
        model = Adapted(model).to(where).eval().requires_grad_(False)
        if origin is not None:
            remember(model, Origin(name, classes, (0.0,), (1.0,)))
    return model


def get_defense(bundle: Path, classifier: nn.Module | None, data: ImageData, allow: Sequence[str] = ()) -> Defense:
    """The bundle's defence on the data's device. Raises InputError where its images or classes are not the data's."""
    if allow:
        current_directory_first()
    defense = load(bundle, classifier, device=data.test.images.device, allow=allow)
    expected, got = tuple(defense.reference_images().shape[1:]), tuple(data.test.images.shape[1:])
    if expected != got:
        raise InputError(f"--data: expected images of {expected}, as {bundle} was fitted on, got {got}")
    classes = defense.about.get("classes")
    if classes is not None and list(data.classes) != list(classes):
        raise InputError(f"--data: expected the classes {', '.join(classes)}, as in {bundle}, got {', '.join(data.classes)}")
    with torch.no_grad():
        outputs = defense.classifier(data.test.images[:1]).shape[1]
    if outputs != len(data.classes):
        raise InputError(
            f"--data: the classifier has {outputs} outputs, {data.name} has {len(data.classes)} classes; "
            "name all classes in the classifier's order: --classes a,b,c"
        )
    return defense


def current_directory_first() -> None:
    """A user's module lies in the current directory; the installed command does not look there by itself."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def _ours(name: str, inside: bool, normalisation: Normalisation) -> None:
    if inside or normalisation != AS_IT_COMES:
        raise InputError(f"--weights-inside, --mean, --std: expected none beside {name}, which normalises inside")


@torch.no_grad()
def _answers(name: str, model: nn.Module, data: ImageData) -> object:
    """What a network says to two images. Raises InputError where it cannot take them, or gives no logits."""
    images = data.test.images[:2]
    model.eval()
    try:
        answer = model(images)
    except (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, AssertionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"--classifier {name}: cannot take images of (channels, height, width) = {tuple(images.shape[1:])}: {first}; "
            "choose the size it was made for: --image-size N"
        ) from error
    logits = getattr(answer, "logits", answer)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(answer).__name__
        raise InputError(f"--classifier {name}: expected logits (images, classes), got {got}")
    return answer


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(as_number(part)) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{option} {text}: {error}") from error

"""What is asked of a classifier and its images before hours of work, so that a mistake is said at once."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from twoprong.data.tensors import Labelled, image_digests
from twoprong.errors import InputError
from twoprong.measure import wilson
from twoprong.models.adapters import Adapted
from twoprong.models.features import Features

LOOKED_AT = 10_000  # images that the accuracy is judged on, evenly over all that are given
SURE = 2.58  # of the Wilson interval: 99 %
BY_CHANCE = 0.05  # that any class of a small set is never right
COMMON = 0.01  # share of held-out or test images that may be copies of others: large data sets have some

log = logging.getLogger("twoprong")


@torch.no_grad()
def check_classifier(extract: Features, data: Labelled, classes: Sequence[str] | None = None) -> None:
    """Two images through the classifier: a wrong shape or another number of classes raises InputError."""
    try:
        logits, _ = extract(data.images[:2])
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, AttributeError):  # what it gave has not even a type of numbers
            got = type(extract.classifier(data.images[:2])).__name__
            raise InputError(
                f"classifier: expected a tensor of logits, got {got}; if it has .logits, wrap the classifier: "
                f"{Adapted.__module__}.{Adapted.__name__}(classifier, mean, std)"
            ) from error
        shape = tuple(data.images.shape[1:])
        raise InputError(
            f"classifier: cannot take images of (channels, height, width) = {shape}: {str(error).splitlines()[0]}"
        ) from error
    if logits.ndim != 2 or len(logits) != min(2, len(data)):
        raise InputError(f"classifier: expected logits (images, classes), got shape {tuple(logits.shape)}")
    outputs = logits.shape[1]
    if classes is not None and (len(classes) != outputs or len(set(classes)) != outputs):
        raise InputError(
            f"classes: expected {outputs} different names, one for each of the classifier's outputs, got {len(classes)}; "
            f"pass all of them in the classifier's order: --classes (classes=[...]); got {shortened(classes)}"
        )
    if int(data.labels.max()) >= outputs:
        raise InputError(f"labels: expected 0 to {outputs - 1}, the classifier's classes, got {int(data.labels.max())}")


@torch.no_grad()
def check_accuracy(extract: Features, data: Labelled, classes: Sequence[str] | None = None, force: bool = False) -> None:
    """Refuse a classifier that is not clearly better than the commonest class, or almost always wrong on some classes.

    Both mean, nearly always, that the labels are not in the order of its outputs, its weights are not loaded or its images
    are normalised otherwise. With `force` it is a warning.
    """
    chosen = torch.linspace(0, len(data) - 1, min(LOOKED_AT, len(data))).long().to(data.labels.device)
    labels = data.labels[chosen]
    found = torch.cat([extract.classifier(data.images[part]).argmax(1) for part in chosen.split(500)])
    right, count = int((found == labels).sum()), len(labels)
    share, chance = right / count, labels.bincount().max().item() / count
    said = None
    if wilson(right, count, SURE)[0] <= chance:
        said = (
            f"classifies {share:.2%} of {count:,} of the images correctly, not clearly more than the {chance:.2%} "
            "of always naming the commonest class"
        )
    elif wrong := _wrong_classes(found, labels, share, classes):
        said = f"classifies {share:.2%} of {count:,} of the images correctly, but {'; '.join(wrong)}"
    if said is None:
        return
    order = "" if classes is None else f" (now 0 to {len(classes) - 1}: {shortened(classes)})"
    message = (
        f"classifier: {said}. Are the labels in the order of its outputs{order}? If not, name the classes in its order: "
        "--classes a,b,c (classes=[...]). Are its weights loaded (--weights), is it trained for long enough, is its "
        "normalisation inside (--mean, --std)? "
        "If all is as it should be: --force (force=True)"
    )
    if not force:
        raise InputError(message)
    log.warning(message)


def _wrong_classes(found: Tensor, labels: Tensor, share: float, classes: Sequence[str] | None) -> list[str]:
    """The classes that are nearly always wrong, each with what is answered instead.

    So is a class whose accuracy is surely below a quarter of the whole. In a small set, one that is never right is, too, if
    that would happen by chance in at most 5 % of such sets were its accuracy half of that of the classes that are right at
    times: of ten classes it takes about ten images.
    """
    wrong, present = [], labels.unique().tolist()
    never = [label for label in present if not bool((found[labels == label] == label).any())]
    others = ~torch.isin(labels, labels.new_tensor(never))
    accuracy = (found[others] == labels[others]).double().mean().item()
    for label in present:
        answers = found[labels == label]
        hits = int((answers == label).sum())
        missed = label in never and (1 - accuracy / 2) ** len(answers) < BY_CHANCE / len(present)
        if missed or wilson(hits, len(answers), SURE)[1] < share / 4:
            often = int(answers.mode().values)
            part = (answers == often).double().mean().item()
            wrong.append(
                f"{hits / len(answers):.0%} of {_named(label, classes)}, which it calls {_named(often, classes)} {part:.0%} "
                "of the time"
            )
    return wrong[:5] + (["..."] if len(wrong) > 5 else [])


def check_held_out(data: Labelled, unseen: Labelled, force: bool = False) -> None:
    """Held-out images have the others' size and are not among them: InputError (with `force`, copies are a warning)."""
    if unseen.images.shape[1:] != data.images.shape[1:]:
        raise InputError(
            f"held_out: expected images of {tuple(data.images.shape[1:])}, like the others, "
            f"got {tuple(unseen.images.shape[1:])}"
        )
    _refuse_copies(
        "held_out",
        overlap(unseen, data),
        len(unseen),
        "the images to learn from, too: they are not held out; give images that the classifier has not learned",
        force,
    )


def check_test(test: Labelled, data: Labelled, unseen: Labelled | None = None, force: bool = False) -> int:
    """How many test images are in another part, too. InputError for more than a few (with `force` a warning).

    The other parts are the images to learn from and the held-out ones, which the thresholds are set on.
    """
    shape = data.images.shape[1:]
    if test.images.shape[1:] != shape:
        raise InputError(f"test: expected images of {tuple(shape)}, like the others, got {tuple(test.images.shape[1:])}")
    copies = overlap(test, data, *([] if unseen is None else [unseen]))
    _refuse_copies(
        "test",
        copies,
        len(test),
        "the images to learn from or the held-out ones, too: numbers from them say nothing of new images; give test images "
        "that are in no other part (other ones for --held-out)",
        force,
    )
    return copies


def _refuse_copies(name: str, copies: int, count: int, among: str, force: bool) -> None:
    if copies == 0:
        return
    message = f"{name}: {copies:,} of {count:,} images are among {among}, or go on all the same: --force (force=True)"
    if copies > COMMON * count and not force:
        raise InputError(message)
    log.warning(message)


def overlap(some: Labelled, *others: Labelled) -> int:
    """How many of some images are also, pixel by pixel, among others."""
    known = torch.cat([image_digests(part.images) for part in others])
    return int(torch.isin(image_digests(some.images), known).sum())


def shortened(classes: Sequence[str], most: int = 10) -> str:
    return ", ".join(classes[:most]) + (", ..." if len(classes) > most else "")


def _named(label: int, classes: Sequence[str] | None) -> str:
    return f"class {label}" if classes is None else f"class {label} ({classes[label]})"

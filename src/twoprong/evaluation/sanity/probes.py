"""Sanity checks that put questions to the defence itself: has it seen the images, is what is attacked what is deployed?"""

from collections.abc import Iterable

import torch
from torch import Tensor

from twoprong.attacks.apgd import APGD
from twoprong.attacks.base import Attack
from twoprong.attacks.evade import Evade
from twoprong.attacks.pgd import PGD
from twoprong.attacks.target import Role, Target
from twoprong.data.tensors import Labelled, image_digests
from twoprong.defense import Defense
from twoprong.evaluation.sanity.finding import NEARLY_ZERO, POINT, Finding, finding, not_memory
from twoprong.models.modes import evaluating
from twoprong.seeds import generator


def unseen(defense: Defense, data: Labelled) -> Finding:
    """The detector must not have been calibrated on, or compare with, the images it is evaluated on."""
    mine = set(image_digests(data.images).tolist())
    reference = mine & set(image_digests(defense.reference_images()).tolist())
    calibration = mine & set(defense.detector.calibrated_on.tolist())
    shared = len(reference | calibration)
    unknown = not len(defense.detector.calibrated_on) and defense.config.detector.threshold is None and not shared
    return finding(
        "unseen images",
        "Are the images of this run others than those of the detector's reference and calibration?",
        "not applicable" if unknown else shared <= POINT * len(mine),
        "the bundle does not say which images it was calibrated on; none is in the reference"
        if unknown
        else f"{shared} of {len(mine)} images were used to make the detector",
        reference=len(reference),
        calibration=len(calibration),
    )


def consistent(target: Target, batches: Iterable[Tensor], seed: int) -> Finding:
    """What attacks differentiate must be what is deployed: same images, same noise, same labels."""
    same, seen = 0, 0
    for images in batches:
        with evaluating(target), torch.no_grad():
            outcome = target.decide(images, generator(seed, "sanity", "same", device=images.device))
            route: Role = "flagged" if outcome.adversarial else "passing"
            logits = target.logits(images, route, 1, generator(seed, "sanity", "same", device=images.device))[0]
        same += int((outcome.logits.argmax(1) == logits.argmax(1)).sum())
        seen += len(images)
    return finding(
        "same object",
        "Does the deployed decision agree with the logits that attacks differentiate, on attacked batches?",
        same >= 0.9 * seen,
        f"{same} of {seen} labels are the same",
        agreement=same / seen,
    )


def swapped(target: Target, batch: Labelled, seed: int) -> Finding:
    """Every image replaced by one of another class: whoever still gives the old label does not look at the image."""
    order = batch.labels.argsort()
    half = len(order) // 2
    other = torch.empty_like(order)
    other[order] = order.roll(half)
    differs = batch.labels[other] != batch.labels
    name, question = (
        "swapped images",
        "Does the label follow the image when every image is replaced by one of another class?",
    )
    if not bool(differs.any()):
        return finding(name, question, "not applicable", "the batch has one class only")
    draw = generator(seed, "sanity", "swapped", device=batch.images.device)
    with evaluating(target):
        moved, clean = (target.decide(images, draw) for images in (batch.images[other], batch.images))
    kept = (moved.logits.argmax(1) == batch.labels)[differs].double().mean().item()
    wrong = (clean.logits.argmax(1) != batch.labels).double().mean().item()  # who errs may hit the old label by accident
    return finding(name, question, kept <= wrong + 2 * NEARLY_ZERO, f"{kept:.1%} keep the old label", kept=kept)


def large_budget(target: Target, batch: Labelled, seed: int) -> Finding:
    """With a budget that allows nearly any image, accuracy must fall to about zero."""
    attacks: tuple[Attack, ...] = (
        Evade(eps=0.5, steps=20, penalties=(1.0,)),
        PGD(eps=0.5, steps=20, draws=4, loss="margin"),
    )
    left = 1.0
    for attack in attacks:
        try:
            result = attack(
                target, batch.images, batch.labels, generator(seed, "sanity", "large", device=batch.images.device)
            )
        except RuntimeError as error:
            not_memory(error)
            continue
        left = min(left, result.accuracy)
        if left <= NEARLY_ZERO:
            break
    return finding(
        "large budget",
        "Does accuracy fall to about zero when every pixel may change by a half?",
        left <= NEARLY_ZERO,
        f"{left:.1%} left at linf 0.5",
        accuracy=left,
    )


def broken(defense: Defense, batch: Labelled, eps: float, norm: str, seed: int, bare: float) -> Finding:
    """A pipeline known to be broken must break, or the attack is not worth much.

    Not where the classifier by itself withstands this budget. A denoiser may take a small one away: twice it is tried too.
    """
    name, question = "broken pipeline", "Does the flagged route without noise, and without a test, fall to about zero?"
    weak = defense.flagged.broken()
    if weak is None:
        return finding(name, question, "not applicable", f"nothing of a {defense.flagged.kind} route is known to break")
    if bare > 2 * NEARLY_ZERO:
        return finding(name, question, "not applicable", f"PGD leaves the bare classifier {bare:.1%} at this budget")
    left = {}
    for factor in (1, 2):
        draw = generator(seed, "sanity", "broken", device=batch.images.device)
        attack = APGD(eps=factor * eps, norm=norm, steps=100)
        try:
            with evaluating(defense):
                left[f"{factor}x"] = attack(weak, batch.images, batch.labels, draw).accuracy
        except RuntimeError as error:
            not_memory(error)
            return finding(name, question, False, f"the attack could not run: {str(error).splitlines()[0]}")
        if left[f"{factor}x"] <= 2 * NEARLY_ZERO:
            break
    told = ", ".join(f"{value:.1%} at {factor} the budget" for factor, value in left.items())
    return finding(name, question, min(left.values()) <= 2 * NEARLY_ZERO, f"APGD leaves {told}", **left)

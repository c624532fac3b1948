"""Is this evaluation to be trusted? Checks that fail when an attack is broken, gradients are masked, or numbers leak.

Each check is a function that returns a finding; docs/evaluate.md lists them. What a check computes is kept by the caller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from twoprong.attacks.apgd import APGD
from twoprong.attacks.base import Attack, evaluating
from twoprong.attacks.evade import Evade
from twoprong.attacks.pgd import PGD
from twoprong.attacks.target import Route, Target
from twoprong.data.tensors import Labelled, image_digests
from twoprong.defense import Defense
from twoprong.evaluation.protocols import KNOWLEDGE, KNOWS_ALL, Item
from twoprong.models.features import full
from twoprong.seeds import generator

Finding = dict[str, Any]

NEARLY_ZERO = 0.05  # "accuracy ≈ 0"
POINT = 0.01
FAR = 0.05  # doubling an attack's effort may lower the accuracy by this much before the run is called unreliable
LITTLE = 0.10  # noise of the attack's size may cost this much accuracy, or
LESS = 0.2  # this share of what the attacks cost: a natural classifier of photographs does not like noise either


def finding(name: str, question: str, status: str | bool, detail: str, **values: Any) -> Finding:
    if isinstance(status, bool):
        status = "passed" if status else "failed"
    return {"name": name, "question": question, "status": status, "detail": detail, "values": values}


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
            route: Route = "denoise" if outcome.adversarial else "clean"
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


class Noiseless:
    """The known-broken pipeline: denoiser and classifier without noise and without a test."""

    def __init__(self, defense: Defense) -> None:
        self.defense = defense

    def __call__(self, images: Tensor) -> Tensor:
        return full(self.defense.classifier(full(self.defense.denoiser(images)).clamp(0, 1)))


def broken(defense: Defense, batch: Labelled, eps: float, norm: str, seed: int, bare: float) -> Finding:
    """A pipeline known to be broken must break, or the attack is not worth much.

    Not where the classifier by itself withstands this budget. A denoiser may take a small one away: twice it is tried too.
    """
    name, question = "broken pipeline", "Does denoiser + natural classifier, without noise and test, fall to about zero?"
    if bare > 2 * NEARLY_ZERO:
        return finding(name, question, "not applicable", f"PGD leaves the bare classifier {bare:.1%} at this budget")
    left = {}
    for factor in (1, 2):
        draw = generator(seed, "sanity", "broken", device=batch.images.device)
        attack = APGD(eps=factor * eps, norm=norm, steps=100)
        try:
            with evaluating(defense):
                left[f"{factor}x"] = attack(Noiseless(defense), batch.images, batch.labels, draw).accuracy
        except RuntimeError as error:
            not_memory(error)
            return finding(name, question, False, f"the attack could not run: {str(error).splitlines()[0]}")
        if left[f"{factor}x"] <= 2 * NEARLY_ZERO:
            break
    told = ", ".join(f"{value:.1%} at {factor} the budget" for factor, value in left.items())
    return finding(name, question, min(left.values()) <= 2 * NEARLY_ZERO, f"APGD leaves {told}", **left)


def not_memory(error: RuntimeError) -> None:
    """An attack that runs out of memory says nothing about gradients."""
    if isinstance(error, torch.OutOfMemoryError):
        raise error


def doubled(attack: Attack) -> dict[str, Attack]:
    """The attack with twice its steps (20 at least), draws and restarts, each where it has such a setting."""
    named = {field.name for field in fields(attack)} & {"steps", "draws", "restarts"}
    more = {name: 2 * getattr(attack, name) for name in sorted(named)}
    return {
        f"{value} {name}": replace(attack, **{name: value})
        for name, value in (more | ({"steps": max(20, more["steps"])} if "steps" in more else {})).items()
    }


def converged(item: Item, score: Callable[[Attack], Sequence[float]]) -> Finding:
    """Twice the effort of the strongest attack must change little; where it leaves nothing, there is nothing to find.

    `score` gives for every image the share of draws in which it is right, always from the same stream of random numbers. A
    change counts as one when it is also beyond twice its standard error over the images.
    """
    before = score(item.attack)
    question = f"Does twice the effort of the strongest attack ({item.name}) change the accuracy by less than a point?"
    if _mean(before) <= POINT:
        known = {"attack": item.name, "images": len(before), "before": _mean(before), "after": {}}
        return finding("convergence", question, True, f"{_mean(before):.1%}: there is nothing left to find", **known)
    changes = {
        name: [now - then for now, then in zip(score(attack), before, strict=True)]
        for name, attack in doubled(item.attack).items()
    }
    status, words = "passed", []
    for name, change in changes.items():
        mean, error = _mean_error(change)
        words.append(f"with {name}: {_mean(before):.1%} to {_mean(before) + mean:.1%}")
        if abs(mean) >= FAR and abs(mean) > 2 * error:
            status = "failed"
        elif -mean >= POINT and status == "passed":
            status = "not converged"
    return finding(
        "convergence",
        question,
        status if changes else "not applicable",
        "; ".join(words) or "it has no steps, draws or restarts",
        attack=item.name,
        images=len(before),
        before=_mean(before),
        after={name: _mean(before) + _mean(change) for name, change in changes.items()},
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error."""
    mean, count = _mean(values), len(values)
    return mean, (sum((value - mean) ** 2 for value in values) / (count * max(1, count - 1))) ** 0.5


def in_ball(attacks: Sequence[Mapping[str, Any]]) -> Finding:
    """Everything that was scored must be an image within the budget."""
    outside = [
        f"{attack['name']} ({batch['distance']:.5g}; pixels {batch['lowest']:.3g} to {batch['highest']:.3g})"
        for attack in attacks
        for batch in attack["batches"]
        if batch["distance"] > attack["eps"] * (1 + 1e-4) + 1e-6 or batch["lowest"] < 0 or batch["highest"] > 1
    ]
    return finding(
        "inside the ball",
        "Is every attacked image within the budget and in [0, 1]?",
        not outside,
        "; ".join(outside[:5]) or "all are",
        outside=len(outside),
    )


def harmless_noise(clean: Mapping[str, float], noise: Mapping[str, float], worst: float) -> Finding:
    """Accuracies by subject, and what the attacks leave of the bare classifier's.

    The bare classifier is judged: a detector may flag noise, and the denoiser has its price.
    """
    return finding(
        "random noise",
        "Does noise of the attack's size, chosen by nobody, do little to the classifier?",
        clean["bare"] - noise["bare"] <= max(LITTLE, LESS * (clean["bare"] - worst)),
        f"bare {clean['bare']:.1%} to {noise['bare']:.1%}, defended {clean['defense']:.1%} to {noise['defense']:.1%}",
        bare=noise["bare"],
        defense=noise["defense"],
    )


def ordered(accuracy: Mapping[str, float], images: int) -> Finding:
    """Who knows the defence must not do worse than who does not. `accuracy` is the worst case per threat model.

    Among those who do not know it there is no order: a transferred attack may happen to pass a test that PGD does not.
    """
    knowing = min((left for name, left in accuracy.items() if KNOWLEDGE[name] == KNOWS_ALL), default=None)
    told = ", ".join(f"{name} {left:.1%}" for name, left in accuracy.items())
    question = "Does an attacker who knows the defence never do worse than one who does not?"
    if knowing is None:
        return finding("order of knowledge", question, "not applicable", f"no attack knows the defence; {told}", **accuracy)
    better = [name for name, left in accuracy.items() if KNOWLEDGE[name] < KNOWS_ALL and not _at_most(knowing, left, images)]
    detail = f"{', '.join(better)} did better: {told}" if better else told
    return finding("order of knowledge", question, not better, detail, **accuracy)


def monotone(curve: Sequence[Mapping[str, Any]], targets: Mapping[str, str], images: int) -> Finding:
    """What the best attack of each budget leaves whoever is attacked must fall with the budget.

    `targets` says whom each line of the curve attacks. A single attack that does worse with more, where another one does
    not, has not converged.
    """
    problems, erratic = [], []
    for target in dict.fromkeys(targets.values()):
        names = [name for name, aim in targets.items() if aim == target]
        lines = {name: [entry for entry in curve if entry["attack"] == name] for name in names}
        least: dict[float, Mapping[str, Any]] = {}
        for entry in (entry for line in lines.values() for entry in line):
            known = least.get(entry["eps"], entry)
            least[entry["eps"]] = min(known, entry, key=lambda one: one["subjects"][target]["accuracy"])
        problems += [f"{target}: {rise}" for rise in _rises(list(least.values()), target, images)]
        erratic += [f"{name}: {rise}" for name, line in lines.items() for rise in _rises(line, target, images)]
    return finding(
        "monotone in the budget",
        "Does what the best attack of each budget leaves fall as the budget grows?",
        "failed" if problems else "not converged" if erratic else "passed",
        "; ".join([*problems, *erratic]) or f"it does, of {', '.join(dict.fromkeys(targets.values()))}",
    )


def _rises(points: Sequence[Mapping[str, Any]], target: str, images: int) -> list[str]:
    """Where accuracy is higher at the next larger budget, beyond a point and beyond chance."""
    found = []
    for low, high in pairwise(sorted(points, key=lambda point: point["eps"])):
        before, after = (point["subjects"][target]["accuracy"] for point in (low, high))
        spread = sum(_batch_error(point, target) ** 2 for point in (low, high)) ** 0.5
        if not _at_most(after, before + 2 * spread, images):
            found.append(f"{before:.1%} at {low['eps']:.4g}, {after:.1%} at {high['eps']:.4g}")
    return found


def false_alarms(detector: Mapping[str, Any], calibrated: bool) -> Finding:
    """Rates on unseen clean batches whose interval lies above what was asked for; a constant threshold promises nothing."""
    asked = detector["false_alarm_rate"]
    high = [entry for entry in detector["false_alarms"] if entry["interval"][0] > asked]
    worst = max(detector["false_alarms"], key=lambda entry: entry["rate"])
    return finding(
        "false alarms",
        f"Are at most {asked:.0%} of unseen clean batches flagged, at every batch size?",
        not high if calibrated else "not applicable",
        "; ".join(f"size {entry['size']}: {entry['rate']:.1%}" for entry in high)
        or f"at most {worst['rate']:.1%} (batches of {worst['size']}; "
        f"so many could as well be {worst['interval'][0]:.1%} to {worst['interval'][1]:.1%})",
        worst=worst["rate"],
    )


def _batch_error(point: Mapping[str, Any], target: str) -> float:
    """The standard error of an accuracy over its batches: a batch that changes its route moves all its images at once."""
    entries = [batch["subjects"][target] for batch in point.get("batches", ())]
    return _mean_error([_mean(entry["by_draw"]) for entry in entries])[1] if len(entries) > 1 else 0.0


def _at_most(value: float, bound: float, images: int) -> bool:
    """value ≤ bound, up to a point or what chance does with so many images."""
    return value <= bound + max(POINT, 1.96 * (max(0.0, bound * (1 - bound)) / images) ** 0.5)

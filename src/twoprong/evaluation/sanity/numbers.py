"""Sanity checks that read the numbers of a run: do they agree with each other, and has the strongest attack converged?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise

from twoprong.attacks.base import Attack
from twoprong.evaluation.protocols import KNOWLEDGE, KNOWS_ALL, Item
from twoprong.evaluation.sanity.finding import FAR, LESS, LITTLE, POINT, finding, mean, mean_error
from twoprong.results.detector import DetectorStudy
from twoprong.results.evaluation import AttackEntry, CurvePoint, Finding, Status


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
    if mean(before) <= POINT:
        known = {"attack": item.name, "images": len(before), "before": mean(before), "after": {}}
        return finding("convergence", question, True, f"{mean(before):.1%}: there is nothing left to find", **known)
    changes = {
        name: [now - then for now, then in zip(score(attack), before, strict=True)]
        for name, attack in doubled(item.attack).items()
    }
    status: Status = "passed"
    words = []
    for name, change in changes.items():
        shift, error = mean_error(change)
        words.append(f"with {name}: {mean(before):.1%} to {mean(before) + shift:.1%}")
        if abs(shift) >= FAR and abs(shift) > 2 * error:
            status = "failed"
        elif -shift >= POINT and status == "passed":
            status = "not converged"
    return finding(
        "convergence",
        question,
        status if changes else "not applicable",
        "; ".join(words) or "it has no steps, draws or restarts",
        attack=item.name,
        images=len(before),
        before=mean(before),
        after={name: mean(before) + mean(change) for name, change in changes.items()},
    )


def nothing_counts(not_run: Sequence[str]) -> Finding:
    """Without an attack that counts there is no worst case, and nothing is known of what the defence withstands."""
    question = "Could an attack run that counts in the worst case?"
    return finding("worst case", question, False, f"none could: {', '.join(not_run)}", not_run=list(not_run))


def in_ball(attacks: Sequence[AttackEntry]) -> Finding:
    """Everything that was scored must be an image within the budget."""
    outside = [
        f"{attack.name} ({batch.distance:.5g}; pixels {batch.lowest:.3g} to {batch.highest:.3g})"
        for attack in attacks
        for batch in attack.batches
        if batch.distance > attack.eps * (1 + 1e-4) + 1e-6 or batch.lowest < 0 or batch.highest > 1
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


def monotone(curve: Sequence[CurvePoint], targets: Mapping[str, str], images: int) -> Finding:
    """What the best attack of each budget leaves whoever is attacked must fall with the budget.

    `targets` says whom each line of the curve attacks. A single attack that does worse with more, where another one does
    not, has not converged.
    """
    problems, erratic = [], []
    for target in dict.fromkeys(targets.values()):
        names = [name for name, aim in targets.items() if aim == target]
        lines = {name: [point for point in curve if point.attack == name] for name in names}
        least: dict[float, CurvePoint] = {}
        for point in (point for line in lines.values() for point in line):
            known = least.get(point.eps, point)
            least[point.eps] = min(known, point, key=lambda one: one.subjects[target].accuracy)
        problems += [f"{target}: {rise}" for rise in _rises(list(least.values()), target, images)]
        erratic += [f"{name}: {rise}" for name, line in lines.items() for rise in _rises(line, target, images)]
    return finding(
        "monotone in the budget",
        "Does what the best attack of each budget leaves fall as the budget grows?",
        "failed" if problems else "not converged" if erratic else "passed",
        "; ".join([*problems, *erratic]) or f"it does, of {', '.join(dict.fromkeys(targets.values()))}",
    )


def _rises(points: Sequence[CurvePoint], target: str, images: int) -> list[str]:
    """Where accuracy is higher at the next larger budget, beyond a point and beyond chance."""
    found = []
    for low, high in pairwise(sorted(points, key=lambda point: point.eps)):
        before, after = (point.subjects[target].accuracy for point in (low, high))
        spread = sum(_batch_error(point, target) ** 2 for point in (low, high)) ** 0.5
        if not _at_most(after, before + 2 * spread, images):
            found.append(f"{before:.1%} at {low.eps:.4g}, {after:.1%} at {high.eps:.4g}")
    return found


def false_alarms(detector: DetectorStudy, calibrated: bool) -> Finding:
    """Rates on unseen clean batches whose interval lies above what was asked for; a constant threshold promises nothing."""
    asked = detector.false_alarm_rate
    high = [row for row in detector.false_alarms if row.interval[0] > asked]
    worst = max(detector.false_alarms, key=lambda row: row.rate)
    return finding(
        "false alarms",
        f"Are at most {asked:.0%} of unseen clean batches flagged, at every batch size?",
        not high if calibrated else "not applicable",
        "; ".join(f"size {row.size}: {row.rate:.1%}" for row in high)
        or f"at most {worst.rate:.1%} (batches of {worst.size}; "
        f"so many could as well be {worst.interval[0]:.1%} to {worst.interval[1]:.1%})",
        worst=worst.rate,
    )


def _batch_error(point: CurvePoint, target: str) -> float:
    """The standard error of an accuracy over its batches: a batch that changes its route moves all its images at once."""
    scores = [batch.subjects[target] for batch in point.batches]
    return mean_error([mean(score.by_draw) for score in scores])[1] if len(scores) > 1 else 0.0


def _at_most(value: float, bound: float, images: int) -> bool:
    """value ≤ bound, up to a point or what chance does with so many images."""
    return value <= bound + max(POINT, 1.96 * (max(0.0, bound * (1 - bound)) / images) ** 0.5)

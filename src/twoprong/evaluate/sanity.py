"""Is this evaluation to be trusted? Checks that fail when an attack is broken, gradients are masked, or numbers leak.

Each check is a function that returns a finding; docs/evaluate.md lists them. What a check computes is kept by the caller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from twoprong.attacks.apgd import APGD
from twoprong.attacks.base import Attack, evaluating
from twoprong.attacks.evade import Evade
from twoprong.attacks.losses import margin
from twoprong.attacks.pgd import PGD
from twoprong.attacks.target import Route, Target
from twoprong.data.tensors import Labelled, image_digests
from twoprong.defense import Defense
from twoprong.evaluate.protocols import KNOWLEDGE, Item
from twoprong.models.features import full
from twoprong.seeds import generator

Finding = dict[str, Any]

NEARLY_ZERO = 0.05  # "accuracy ≈ 0"
POINT = 0.01
FAR = 0.05  # doubling an attack's effort may lower the accuracy by this much before the run is called unreliable
LITTLE = 0.10  # noise of the attack's size may cost this much accuracy


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
    return finding(
        "unseen images",
        "Are the images of this run others than those of the detector's reference and calibration?",
        shared <= POINT * len(mine),
        f"{shared} of {len(mine)} images were used to make the detector",
        reference=len(reference),
        calibration=len(calibration),
    )


def gradients(target: Target, batch: Labelled, eps: float, seed: int) -> Finding:
    """Gradients must exist, hardly ever be zero, and agree with what the deployed function does in finite steps."""
    draw = generator(seed, "sanity", "gradients", device=batch.images.device)
    start = (
        batch.images + eps * (2 * torch.rand(batch.images.shape, generator=draw, device=batch.images.device) - 1)
    ).clamp(0, 1)
    values: dict[str, Any] = {}
    problems = []
    for route in ("clean", "denoise"):
        try:
            zero, wrong = _loss_gradients(target, start, batch.labels, route, seed)
        except RuntimeError as error:
            problems.append(f"the {route} route cannot be differentiated ({str(error).splitlines()[0]})")
            continue
        values |= {f"{route}_zero": zero, f"{route}_error": wrong}
        if zero > FAR:
            problems.append(f"{zero:.0%} of the gradients of the {route} route are zero")
        if wrong > 0.5:
            problems.append(f"gradients of the {route} route are off by {wrong:.0%} (median) from finite differences")
    try:
        wrong = _statistic_gradient(target, start)
        values["statistic_error"] = wrong
        if wrong > 0.5:
            problems.append(f"the statistic's gradient is off by {wrong:.0%} from a finite difference")
    except RuntimeError as error:
        problems.append(f"the statistic cannot be differentiated ({str(error).splitlines()[0]})")
    return finding(
        "gradients",
        "Do both routes and the statistic have gradients, not zero, that agree with finite differences?",
        not problems,
        "; ".join(problems) or "they exist, are not zero, and agree with finite differences",
        **values,
    )


def _loss_gradients(target: Target, images: Tensor, labels: Tensor, route: Route, seed: int) -> tuple[float, float]:
    """The share of zero gradients of the margin, and the median relative error along the gradient of those that are not."""

    def value(x: Tensor) -> Tensor:  # the same noise at every call
        return margin(target.logits(x, route, 1, generator(seed, "sanity", "noise", device=x.device))[0], labels)

    with evaluating(target), torch.enable_grad():
        leaf = images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(value(leaf).sum(), leaf)
    length = gradient.flatten(1).norm(dim=1)
    zero = (length == 0).double().mean().item()
    if zero == 1:
        return zero, 0.0
    direction = gradient / length.clamp_min(1e-30)[:, None, None, None]
    with evaluating(target), torch.no_grad():
        step = 1e-2
        slope = (value(images + step * direction) - value(images - step * direction)) / (2 * step)
    error = ((slope - length).abs() / length.clamp_min(1e-30))[length > 0]
    return zero, error.median().item()


def _statistic_gradient(target: Target, images: Tensor) -> float:
    """The relative error of the statistic's slope along its gradient."""
    with evaluating(target), torch.enable_grad():
        leaf = images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(target.statistic(leaf), leaf)
    length = gradient.norm().item()
    if length == 0:
        return 1.0
    with evaluating(target), torch.no_grad():
        step = 0.05
        direction = gradient / length
        slope = (target.statistic(images + step * direction) - target.statistic(images - step * direction)) / (2 * step)
    return abs(slope.item() - length) / length


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
    with evaluating(target):
        outcome = target.decide(batch.images[other], generator(seed, "sanity", "swapped", device=batch.images.device))
    kept = (outcome.logits.argmax(1) == batch.labels)[differs].double().mean().item() if bool(differs.any()) else 0.0
    return finding(
        "swapped images",
        "Does the label follow the image when every image is replaced by one of another class?",
        kept <= 2 * NEARLY_ZERO,
        f"{kept:.1%} keep the old label",
        kept=kept,
    )


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
        except RuntimeError:
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
    """A pipeline known to be broken must break, or the attack is not worth much. Not for a robust classifier."""
    name, question = "broken pipeline", "Does denoiser + natural classifier, without noise and test, fall to about zero?"
    if bare > 2 * NEARLY_ZERO:
        return finding(
            name, question, "not applicable", f"PGD leaves the bare classifier {bare:.1%}: it is not a natural one"
        )
    draw = generator(seed, "sanity", "broken", device=batch.images.device)
    with evaluating(defense):
        try:
            left = APGD(eps=eps, norm=norm, steps=100)(Noiseless(defense), batch.images, batch.labels, draw).accuracy
        except RuntimeError as error:
            return finding(name, question, False, f"the attack could not run: {str(error).splitlines()[0]}")
    return finding(name, question, left <= 2 * NEARLY_ZERO, f"APGD leaves {left:.1%}", accuracy=left)


@dataclass(frozen=True)
class Effort:
    """How an attack does with its own settings and with one of them doubled."""

    setting: str
    before: float
    after: float


def doubled(attack: Attack) -> dict[str, Attack]:
    """The attack with twice its steps, draws and restarts, each where it has such a setting."""
    named = {field.name for field in fields(attack)} & {"steps", "draws", "restarts"}
    return {name: replace(attack, **{name: 2 * getattr(attack, name)}) for name in sorted(named)}


def converged(item: Item, score: Callable[[Attack], float]) -> Finding:
    """Twice the effort of the strongest attack must change little; `score` gives the accuracy that an attack leaves."""
    before = score(item.attack)
    efforts = [Effort(name, before, score(attack)) for name, attack in doubled(item.attack).items()]
    drop = max((effort.before - effort.after for effort in efforts), default=0.0)
    rise = max((effort.after - effort.before for effort in efforts), default=0.0)
    detail = "; ".join(f"twice the {effort.setting}: {effort.before:.1%} to {effort.after:.1%}" for effort in efforts)
    status: str = "passed" if drop < POINT else "not converged" if drop < FAR else "failed"
    if rise >= FAR:
        status = "failed"
    return finding(
        "convergence",
        f"Does twice the effort of the strongest attack ({item.name}) change the accuracy by less than a point?",
        status if efforts else "not applicable",
        detail or "it has no steps, draws or restarts",
        attack=item.name,
        before=before,
        after={effort.setting: effort.after for effort in efforts},
    )


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


def harmless_noise(clean: float, noise: float) -> Finding:
    return finding(
        "random noise",
        "Does noise of the attack's size, chosen by nobody, do little?",
        clean - noise <= LITTLE,
        f"{clean:.1%} without it, {noise:.1%} with it",
        clean=clean,
        noise=noise,
    )


def ordered(accuracy: Mapping[str, float], images: int) -> Finding:
    """Who knows more must not do worse. `accuracy` is the worst case per threat model."""
    best: dict[int, float] = {}
    for name, left in accuracy.items():
        best[KNOWLEDGE[name]] = min(left, best.get(KNOWLEDGE[name], 1.0))
    problems = [
        f"who knows less leaves {best[low]:.1%}, who knows more {best[high]:.1%}"
        for low in best
        for high in best
        if low < high and not _at_most(best[high], best[low], images)
    ]
    return finding(
        "order of knowledge",
        "Does an attacker who knows more never do worse than one who knows less?",
        not problems,
        "; ".join([*problems, ", ".join(f"{name} {left:.1%}" for name, left in accuracy.items())]),
        **accuracy,
    )


def monotone(curve: Sequence[Mapping[str, Any]], targets: Mapping[str, str], images: int) -> Finding:
    """Accuracy of whoever is attacked must fall with the budget. `targets` says whom each line of the curve attacks."""
    problems = []
    for name, target in targets.items():
        points = sorted((entry["eps"], entry["subjects"][target]["accuracy"]) for entry in curve if entry["attack"] == name)
        for (low, before), (high, after) in pairwise(points):
            if not _at_most(after, before, images):
                problems.append(f"{name}: {before:.1%} at {low:.4g}, {after:.1%} at {high:.4g}")
    return finding(
        "monotone in the budget",
        "Does accuracy fall as the budget grows?",
        not problems,
        "; ".join(problems) or "it does",
    )


def false_alarms(detector: Mapping[str, Any]) -> Finding:
    """Rates on unseen clean batches whose interval lies above what was asked for."""
    asked = detector["false_alarm_rate"]
    high = [entry for entry in detector["false_alarms"] if entry["interval"][0] > asked]
    worst = max(detector["false_alarms"], key=lambda entry: entry["rate"])
    return finding(
        "false alarms",
        f"Are at most {asked:.0%} of unseen clean batches flagged, at every batch size?",
        not high,
        "; ".join(f"size {entry['size']}: {entry['rate']:.1%}" for entry in high)
        or f"at most {worst['rate']:.1%} (batches of {worst['size']})",
        worst=worst["rate"],
    )


def _at_most(value: float, bound: float, images: int) -> bool:
    """value ≤ bound, up to a point or what chance does with so many images."""
    return value <= bound + max(POINT, 1.96 * (bound * (1 - bound) / images) ** 0.5)

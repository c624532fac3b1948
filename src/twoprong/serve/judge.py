"""One batch of several keys' images through a defence; where it is flagged, the keys that are to blame are looked for."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.decision import Decision
from twoprong.defense import Defense
from twoprong.detect.copies import copies
from twoprong.detect.kernel import Sample


@dataclass(frozen=True)
class Judged:
    """`decision` is what the defence says of the whole batch. The images of `blamed` keys keep its answer; where the rest
    passed without them (`rest`), the others have the answer of the passing route. `flagged` says which route each took."""

    decision: Decision
    probabilities: Tensor
    flagged: tuple[bool, ...]
    blamed: tuple[str, ...] = ()
    rest: Decision | None = None


@torch.no_grad()
def judge(defense: Defense, images: Tensor, keys: Sequence[str]) -> Judged:
    """Answers for every image. Raises ArithmeticError where one is not finite."""
    images = images.to(defense.detector.reference_pixels)
    decision = defense(images)
    found = Judged(decision, decision.probabilities, (decision.adversarial,) * len(images))
    if decision.adversarial and decision.tested and (blamed := culprits(defense, images, keys)):
        kept = [index for index, key in enumerate(keys) if key not in blamed]
        rest = defense(images[kept])
        if not rest.adversarial:  # else all of them stay flagged
            probabilities = decision.probabilities.clone()
            probabilities[kept] = rest.probabilities
            found = Judged(decision, probabilities, tuple(key in blamed for key in keys), tuple(sorted(blamed)), rest)
    if not found.probabilities.isfinite().all():
        raise ArithmeticError("the classifier's answer is not finite")
    return found


def culprits(defense: Defense, images: Tensor, keys: Sequence[str]) -> set[str]:
    """The keys that are to blame for an alarm: those whose images are flagged by themselves, and then, one after the other
    until the rest passes, those whose absence lowers the statistic most.

    Nobody (the empty set) where more than half of the images would have to go: a small rest passes easily, and the many
    keys of one attacker must not clear the last of them. The statistics are exact: parts of one Gram matrix.
    """
    detector, repeated = defense.detector, copies(images)
    once, place = (images, range(len(images))) if repeated is None else (images[repeated[0]], repeated[1].tolist())
    owners: list[set[str]] = [set() for _ in once]
    for key, index in zip(keys, place, strict=True):
        owners[index].add(key)
    sample = Sample(once, defense.embed(once))
    k_xy, k_yy = detector.kernel(detector.reference, sample), detector.kernel(sample, sample)
    smallest, half = detector.batch_sizes[0], len(once) / 2

    def statistic(part: list[int]) -> float:
        return detector.from_grams(k_xy[:, part], k_yy[part][:, part]).item()

    def flagged(part: list[int]) -> bool:
        return len(part) >= smallest and detector.flags(statistic(part), len(part))

    def without(some: set[str]) -> list[int]:
        return [index for index, who in enumerate(owners) if not who & some]

    blamed = {key for key in set(keys) if flagged([index for index, who in enumerate(owners) if key in who])}
    while len(left := without(blamed)) >= max(half, smallest):
        if not flagged(left):
            return blamed
        rests = {key: without(blamed | {key}) for key in sorted(set(keys) - blamed)}
        known = {key: statistic(rest) for key, rest in rests.items() if len(rest) >= smallest}
        if not known:
            break
        blamed.add(min(known, key=lambda key: known[key]))
    return set()

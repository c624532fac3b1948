"""One batch of several keys' images through a defence; where it is flagged, the keys that are to blame are looked for."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twoprong.decision import Decision
from twoprong.defense import Defense
from twoprong.detect.copies import copies
from twoprong.detect.kernel import Sample

EXCUSED = 1 / 5  # of a key's images may be suspects without consequences: about a tenth of clean images are suspects


@dataclass(frozen=True)
class Judged:
    """`decision` is what the defence says of the whole batch. Suspects and images of `blamed` keys keep its answer; where
    the rest passed without them (`rest`), the others have that of the passing route. `flagged` says which route each took,
    `suspicious` whether it looks attacked by itself (nobody does where the defence has no scores).
    """

    decision: Decision
    probabilities: Tensor
    flagged: tuple[bool, ...]
    suspicious: tuple[bool, ...]
    blamed: tuple[str, ...] = ()
    rest: Decision | None = None


@torch.no_grad()
def judge(defense: Defense, images: Tensor, keys: Sequence[str], watched: Collection[str] = ()) -> Judged:
    """Answers for every image; those of `watched` keys take the flagged route. Raises ArithmeticError where one is not
    finite."""
    images = images.to(defense.detector.reference_pixels)
    decision = defense(images, scored=True)
    whole = decision.adversarial and defense.config.rescue == "batch"
    flagged = (True,) * len(images) if whole else tuple(decision.suspects.tolist())
    found = Judged(decision, decision.probabilities, flagged, _suspicious(defense, decision))
    if decision.adversarial and decision.tested:
        found = _divided(defense, images, keys, found)
    if late := [index for index, key in enumerate(keys) if key in watched and not found.flagged[index]]:
        probabilities = found.probabilities.clone()
        probabilities[late] = defense.flagged.logits(images[late])[0].softmax(1)
        flagged = tuple(was or index in late for index, was in enumerate(found.flagged))
        found = replace(found, probabilities=probabilities, flagged=flagged)
    if not found.probabilities.isfinite().all():
        raise ArithmeticError("the classifier's answer is not finite")
    return found


def _suspicious(defense: Defense, decision: Decision) -> tuple[bool, ...]:
    """Whether each image would be flagged as a batch of one."""
    if decision.scores is None or defense.detector.batch_sizes[0] > 1:
        return (False,) * len(decision)
    return tuple(defense.detector.flags(score, 1) for score in decision.scores.tolist())


def _divided(defense: Defense, images: Tensor, keys: Sequence[str], found: Judged) -> Judged:
    """A flagged batch without those who are to blame, if the rest passes; else as it was."""
    decision = found.decision
    suspects = [False] * len(keys) if decision.scores is None else decision.suspects.tolist()
    shares = _shares(suspects, keys)
    bad = [suspect and shares[key] > EXCUSED for suspect, key in zip(suspects, keys, strict=True)]
    guilty = culprits(defense, images, keys, bad)
    if guilty is None:
        return found
    blamed, flagged = guilty
    kept = [index for index, out in enumerate(flagged) if not out]
    if (rest := defense(images[kept])).adversarial:
        return found
    probabilities = decision.probabilities.clone()
    probabilities[kept] = rest.probabilities
    return replace(found, probabilities=probabilities, flagged=flagged, blamed=tuple(sorted(blamed)), rest=rest)


def _shares(suspects: Sequence[bool], keys: Sequence[str]) -> dict[str, float]:
    """The share of suspects among each key's images."""
    all_, bad = Counter(keys), Counter(key for key, suspect in zip(keys, suspects, strict=True) if suspect)
    return {key: bad[key] / count for key, count in all_.items()}


def culprits(
    defense: Defense, images: Tensor, keys: Sequence[str], bad: Sequence[bool]
) -> tuple[set[str], tuple[bool, ...]] | None:
    """Who is to blame for an alarm: keys, and for each image whether it has to go.

    First the keys whose images would be flagged by themselves, at a false-alarm rate that is divided by the number of keys,
    or of which half (two at least) are `bad`. If the rest does not pass without them, all bad images; and then, one after
    the other, the keys whose absence lowers the statistic most. Images whose features are not finite go first of all.

    None where more than half of the images would have to go: a small rest passes easily, and the many keys of one attacker
    must not clear the last of them. The statistics are exact: parts of one Gram matrix.
    """
    detector, repeated = defense.detector, copies(images)
    once, place = (images, range(len(images))) if repeated is None else (images[repeated[0]], repeated[1].tolist())
    owners: list[set[str]] = [set() for _ in once]
    for key, index in zip(keys, place, strict=True):
        owners[index].add(key)
    features = defense.embed(once)
    finite = detector.kernel.measurable(features)
    broken = set((~finite).nonzero()[:, 0].tolist())
    single = {index for index, one in zip(place, bad, strict=True) if one} | broken
    sample = Sample(once, features.where(finite[:, None], 0.0))
    k_xy, k_yy = detector.kernel(detector.reference, sample), detector.kernel(sample, sample)
    smallest, half = max(2, detector.batch_sizes[0]), len(once) / 2
    rate = defense.config.detector.false_alarm_rate / len(set(keys))

    def statistic(part: list[int]) -> float:
        return detector.from_grams(k_xy[:, part], k_yy[part][:, part]).item()

    def flagged(part: list[int]) -> bool:
        return len(part) >= smallest and detector.flags(statistic(part), len(part))

    def surely(part: list[int]) -> bool:
        return flagged(part) and not detector.verdict(statistic(part), 0, len(part)).p_value > rate

    def guilty(key: str) -> bool:
        own = [index for index, who in enumerate(owners) if key in who and index not in broken]
        return len(single.intersection(own)) >= max(2, len(own) / 2) or surely(own)

    def without(some: set[str], out: set[int]) -> list[int]:
        return [index for index, who in enumerate(owners) if not who & some and index not in out]

    def found(some: set[str], out: set[int]) -> tuple[set[str], tuple[bool, ...]]:
        return some, tuple(index in out or bool(owners[index] & some) for index in place)

    blamed, fewest = {key for key in set(keys) if guilty(key)}, max(half, smallest)
    if blamed and len(left := without(blamed, broken)) >= fewest and not flagged(left):
        return found(blamed, broken)
    while len(left := without(blamed, single)) >= fewest:
        if not flagged(left):
            return found(blamed, single)
        rests = {key: without(blamed | {key}, single) for key in sorted(set(keys) - blamed)}
        known = {key: statistic(rest) for key, rest in rests.items() if len(rest) >= smallest}
        if not known:
            break
        blamed.add(min(known, key=lambda key: known[key]))
    return None

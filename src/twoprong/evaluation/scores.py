"""From what happened to every batch to accuracies with intervals, and to the worst case over attacks."""

from collections.abc import Iterable, Sequence
from typing import Any

from twoprong.measure import over_batches, wilson
from twoprong.results.evaluation import AttackEntry
from twoprong.results.scores import Accuracy, BatchScore, Divergence, Score, SlotScore, WorstCase


def summarise(batches: Sequence[BatchScore]) -> Score:
    """One subject over batches."""
    images = sum(len(batch.correct) for batch in batches)
    right = sum(_right(batch) for batch in batches)
    refused = sum(_refused(batch) for batch in batches)
    flags = [batch.flagged for batch in batches if batch.flagged is not None]
    return Score(
        accuracy=right / images,
        interval=wilson(round(right), images),
        interval_batches=over_batches([_right(batch) for batch in batches], [len(batch.correct) for batch in batches]),
        batches=len(batches),
        worst_draw=sum(min(batch.by_draw) * len(batch.correct) for batch in batches) / images,
        flagged=sum(flags) / len(flags) if flags else None,
        flagged_interval=wilson(sum(flags), len(flags)) if flags else None,
        rejected=refused / images,
        rejected_interval=wilson(round(refused), images),
        fooled=max(0.0, 1 - (right + refused) / images),
        fooled_interval=wilson(round(images - right - refused), images),
        **_accepted(right, images - refused),
    )


def divergence(attacked: Accuracy, clean: Accuracy) -> Divergence:
    """d1(clean, attacked) ≥ 2 (R_attacked - R_clean), the 0-1 risks of one fixed classifier on both (docs/detector.md)."""
    return Divergence(
        at_least=max(0.0, 2 * (clean.accuracy - attacked.accuracy)),
        sure=max(0.0, 2 * (clean.quoted[0] - attacked.quoted[1])),
    )


def slots(batches: Sequence[BatchScore], clean: Sequence[BatchScore], attacked: Sequence[Sequence[int]]) -> SlotScore:
    """One subject under a partial attack: accuracy on the attacked slots, on the others, and on those without the attack."""
    mine: list[float] = []
    others: list[float] = []
    before: list[float] = []
    for batch, untouched, taken in zip(batches, clean, attacked, strict=True):
        chosen = set(taken)
        for slot, (now, then) in enumerate(zip(_shares(batch), _shares(untouched), strict=True)):
            (mine if slot in chosen else others).append(now)
            if slot not in chosen:
                before.append(then)
    return SlotScore(
        attacked=_mean(mine),
        attacked_interval=wilson(round(sum(mine)), len(mine)),
        others=_mean(others),
        others_interval=wilson(round(sum(others)), len(others)),
        others_clean=_mean(before),
        others_clean_interval=wilson(round(sum(before)), len(before)),
    )


def worst_case(attacks: Iterable[AttackEntry], subject: str) -> WorstCase | None:
    """The minimum over all attacks that count: batch by batch (the attacker picks one attack per batch), and image by image.

    What is minimised is the share that is not fooled: right, or refused. None where no attack counts.
    """
    counted = [attack for attack in attacks if attack.in_worst_case]
    if not counted:
        return None
    refused, right, chosen = 0.0, 0.0, []
    by_batch: list[float] = []
    by_sample: list[float] = []
    sizes: list[int] = []
    for number in range(len(counted[0].batches)):
        scores = {attack.name: attack.batches[number].subjects[subject] for attack in counted}
        safe = {name: _safe(score) for name, score in scores.items()}
        name = min(safe, key=lambda name: sum(safe[name]))
        chosen.append(name)
        by_batch.append(sum(safe[name]))
        by_sample.append(sum(min(column) for column in zip(*safe.values(), strict=True)))
        sizes.append(len(safe[name]))
        refused += _refused(scores[name])
        right += _right(scores[name])
    per_batch, per_sample, images = sum(by_batch), sum(by_sample), sum(sizes)
    return WorstCase(
        per_batch=per_batch / images,
        per_batch_interval=wilson(round(per_batch), images),
        per_batch_interval_batches=over_batches(by_batch, sizes),
        per_sample=per_sample / images,
        per_sample_interval=wilson(round(per_sample), images),
        per_sample_interval_batches=over_batches(by_sample, sizes),
        rejected=refused / images,
        rejected_interval=wilson(round(refused), images),
        **_accepted(right, images - refused),
        chosen=chosen,
    )


def _accepted(right: float, accepted: float) -> dict[str, Any]:
    """The accuracy on what was not refused; none where everything was."""
    return {
        "accuracy_accepted": right / accepted if accepted else None,
        "accuracy_accepted_interval": wilson(round(right), round(accepted)),
    }


def _right(batch: BatchScore) -> float:
    return sum(batch.correct) / len(batch.by_draw)


def _refused(batch: BatchScore) -> float:
    return sum(batch.rejected or [0]) / len(batch.by_draw)


def _shares(batch: BatchScore) -> list[float]:
    return [count / len(batch.by_draw) for count in batch.correct]


def _safe(batch: BatchScore) -> list[float]:
    refused = batch.rejected or [0] * len(batch.correct)
    return [(right + out) / len(batch.by_draw) for right, out in zip(batch.correct, refused, strict=True)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

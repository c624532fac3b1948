"""From what happened to every batch to accuracies with intervals, and to the worst case over attacks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from twoprong.measure import wilson

Entry = Mapping[str, Any]  # one subject's numbers on one batch, see docs/evaluate.md


def summarise(entries: Sequence[Entry]) -> dict[str, Any]:
    """One subject over batches."""
    images = sum(len(entry["correct"]) for entry in entries)
    right = sum(sum(entry["correct"]) / len(entry["by_draw"]) for entry in entries)
    refused = sum(sum(entry["rejected"] or [0]) / len(entry["by_draw"]) for entry in entries)
    flags = [entry["flagged"] for entry in entries if entry["flagged"] is not None]
    return {
        "accuracy": right / images,
        "interval": wilson(round(right), images),
        "worst_draw": sum(min(entry["by_draw"]) * len(entry["correct"]) for entry in entries) / images,
        "flagged": sum(flags) / len(flags) if flags else None,
        "flagged_interval": wilson(sum(flags), len(flags)) if flags else None,
        "rejected": refused / images,
        "rejected_interval": wilson(round(refused), images),
        "fooled": max(0.0, 1 - (right + refused) / images),
        "fooled_interval": wilson(round(images - right - refused), images),
        **_accepted(right, images - refused),
    }


def slots(entries: Sequence[Entry], clean: Sequence[Entry], attacked: Sequence[Sequence[int]]) -> dict[str, Any]:
    """One subject under a partial attack: accuracy on the attacked slots, on the others, and on those without the attack."""
    mine: list[float] = []
    others: list[float] = []
    before: list[float] = []
    for entry, untouched, taken in zip(entries, clean, attacked, strict=True):
        chosen = set(taken)
        for slot, (now, then) in enumerate(zip(_shares(entry), _shares(untouched), strict=True)):
            (mine if slot in chosen else others).append(now)
            if slot not in chosen:
                before.append(then)
    return {
        "attacked": _mean(mine),
        "attacked_interval": wilson(round(sum(mine)), len(mine)),
        "others": _mean(others),
        "others_interval": wilson(round(sum(others)), len(others)),
        "others_clean": _mean(before),
        "others_clean_interval": wilson(round(sum(before)), len(before)),
    }


def worst_case(attacks: Iterable[Mapping[str, Any]], subject: str) -> dict[str, Any]:
    """The minimum over all attacks that count: batch by batch (the attacker picks one attack per batch), and image by image.

    What is minimised is the share that is not fooled: right, or refused.
    """
    counted = [attack for attack in attacks if attack["in_worst_case"]]
    per_batch, per_sample, refused, right, chosen, images = 0.0, 0.0, 0.0, 0.0, [], 0
    for number in range(len(counted[0]["batches"])):
        entries = {attack["name"]: attack["batches"][number]["subjects"][subject] for attack in counted}
        safe = {name: _safe(entry) for name, entry in entries.items()}
        name = min(safe, key=lambda name: sum(safe[name]))
        chosen.append(name)
        per_batch += sum(safe[name])
        per_sample += sum(min(column) for column in zip(*safe.values(), strict=True))
        refused += sum(entries[name]["rejected"] or [0]) / len(entries[name]["by_draw"])
        right += sum(entries[name]["correct"]) / len(entries[name]["by_draw"])
        images += len(safe[name])
    return {
        "per_batch": per_batch / images,
        "per_batch_interval": wilson(round(per_batch), images),
        "per_sample": per_sample / images,
        "per_sample_interval": wilson(round(per_sample), images),
        "rejected": refused / images,
        "rejected_interval": wilson(round(refused), images),
        **_accepted(right, images - refused),
        "chosen": chosen,
    }


def _accepted(right: float, accepted: float) -> dict[str, Any]:
    """The accuracy on what was not refused; none where everything was."""
    return {
        "accuracy_accepted": right / accepted if accepted else None,
        "accuracy_accepted_interval": wilson(round(right), round(accepted)),
    }


def _shares(entry: Entry) -> list[float]:
    return [count / len(entry["by_draw"]) for count in entry["correct"]]


def _safe(entry: Entry) -> list[float]:
    refused = entry["rejected"] or [0] * len(entry["correct"])
    return [(right + out) / len(entry["by_draw"]) for right, out in zip(entry["correct"], refused, strict=True)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

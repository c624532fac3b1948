"""Small histograms of the batch test's statistic, one for each attack."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from twoprong.report.figures import panel
from twoprong.report.words import by_threat, plural
from twoprong.results import EvaluationResults


@dataclass(frozen=True)
class Panel:
    """`name` is the attack's."""

    name: str
    flagged: str
    svg: Markup


def panels(results: EvaluationResults) -> list[Panel]:
    """The statistic under every attack beside that of clean batches, on one axis; those who know most first."""
    threshold, clean = results.defense.threshold, results.study.statistics.clean if results.study else []
    attacks = [attack for group in reversed(by_threat(results.attacks).values()) for attack in group]
    found = []
    for attack in sorted(attacks, key=lambda attack: attack.share is not None):
        scores = [batch.subjects["defense"] for batch in attack.batches]
        values = [score.statistic for score in scores if score.statistic is not None]
        if values:
            found.append((attack.name, values, sum(bool(score.flagged) for score in scores)))
    if not found:
        return []
    everything = [*clean, threshold, *(value for _, values, _ in found for value in values)]
    room = 0.05 * (max(everything) - min(everything)) or abs(threshold) or 1.0
    span = (min(everything) - min(room, abs(threshold) or room), max(everything) + room)
    return [
        Panel(
            name,
            f"{flagged} of {plural(len(values), 'batch', 'batches')} flagged",
            Markup(panel(clean, values, threshold, span, _told(name, values, flagged, clean, threshold))),
        )
        for name, values, flagged in found
    ]


def _told(name: str, values: Sequence[float], flagged: int, clean: Sequence[float], threshold: float) -> str:
    middle = sorted(clean)[len(clean) // 2] if clean else None
    beside = "" if middle is None else f", median of clean batches {middle:.2g}"
    return (
        f"Statistic under {name}: median {sorted(values)[len(values) // 2]:.2g}{beside}, "
        f"threshold {threshold:.2g}; {flagged} of {len(values)} batches flagged"
    )

"""The words that the page, results.md and the tables share: names, numbers as people write them, verdict and headline."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from twoprong.results import EvaluationResults
from twoprong.results.evaluation import AttackEntry
from twoprong.results.part import Interval

THREATS = {
    "noise": "knows nothing: random noise, the baseline",
    "transfer": "knows another classifier, not ours",
    "bare": "knows our classifier, not the defence",
    "paper": "knows everything; runs the attacks the paper ran",
    "adaptive": "knows everything: weights, reference, threshold, the law of the noise",
    "partial": "knows everything, holds a share of the slots and wants its own images misread",
    "disrupt": "knows everything, holds a share of the slots and wants a false alarm that spoils the others",
}
BROKEN = 0.1  # a worst case below this is next to nothing: chance, among ten classes
ENOUGH = 3  # batches that tell something of others
FAR = 1.0  # of at most 2: a distance d1 that nobody would call small
NORMS = {"linf": "ℓ∞", "l2": "ℓ2"}
SUBJECTS = {
    "defense": "the defence",
    "bare": "undefended",
    "denoiser": "every batch denoised",
    "robust": "the robust network alone",
    "gate": "the gate without the test",
    "reject": "flagged batches refused",
    "magnet": "MagNet",
    "against": "the other bundle",
}


class Alarms(NamedTuple):
    """A rate of false alarms; None where nothing was tested."""

    rate: float | None
    interval: Interval | None
    batches: int  # that share no image


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def between(interval: Sequence[float] | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}\N{NO-BREAK SPACE}%"


def budget(eps: float, norm: str) -> str:
    """As people write it: 8/255 for ℓ∞ where it is a whole number of grey levels, else the number itself."""
    steps = 255 * eps
    if norm == "linf" and round(steps) >= 1 and abs(steps - round(steps)) < 1e-3:
        return f"{round(steps)}/255"
    return f"{eps:.3g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def verdict(results: EvaluationResults) -> tuple[str, str]:
    """What the sanity checks say of all the numbers and what these say of the defence: a level and a sentence.

    `bad`: the numbers cannot be trusted. `broken`: they can, and the worst case leaves next to nothing. `warn`: they are
    upper bounds, or nothing vouches for them. `weak`: less than half of the clean accuracy is left. `good`: more.
    """
    level, said = _checked(results)
    worst, clean = results.worst_case.get("defense"), results.clean.subjects.get("defense")
    if level == "bad" or worst is None:
        return level, said
    if worst.per_batch < BROKEN:
        return "broken", f"{said} The defence does not hold: its worst case leaves {percent(worst.per_batch)}."
    half = 0.5 if clean is None else clean.accuracy / 2
    return "weak" if level == "good" and worst.per_batch < half else level, said


def _checked(results: EvaluationResults) -> tuple[str, str]:
    """What the sanity checks say."""
    count = Counter(check.status for check in results.sanity)
    failed = [check.name for check in results.sanity if check.status == "failed"]
    if failed or not results.reliable:
        which = f"{plural(len(failed), 'sanity check')} failed ({'; '.join(failed)})" if failed else "the run is marked so"
        return "bad", f"UNRELIABLE: {which}. Do not quote these numbers."
    if not count["passed"] + count["not converged"]:
        return "warn", "No sanity check was run: nothing vouches for these numbers."
    if count["not converged"]:
        return "warn", f"Sanity checks passed, {count['not converged']} not converged: read accuracies as upper bounds."
    return "good", f"All {plural(count['passed'], 'sanity check')} that could be run passed."


def headline(results: EvaluationResults) -> str:
    """The sentence a manager reads: the worst case, told with what the attacker knows and may do."""
    run, worst = results.run, results.worst_case.get("defense")
    if worst is None:
        return "No attack with the whole budget was run, so nothing can be said of what the defence withstands."
    size = budget(run.eps, run.norm)
    change = (
        f"every pixel by at most {size}"
        if run.norm == "linf"
        else f"every image by at most {size} in {NORMS.get(run.norm, run.norm)}"
    )
    left = f"leaves {percent(worst.per_batch)} right ({between(worst.per_batch_quoted)}, {batches_of(worst.batches)})"
    mine = [attack for attack in results.attacks if attack.in_worst_case and attack.target == "defense"]
    threats = {attack.threat_model for attack in mine}
    if "adaptive" in threats:
        return f"An attacker who knows the whole defence and may change {change} {left}."
    known = "of them only the paper's know the defence" if "paper" in threats else "none of them knows the defence"
    return (
        f"The worst of the attacks that were run, changing {change}, {left}; {known}, and one made for it may get further."
    )


def hidden(results: EvaluationResults) -> str:
    """Which attack passes the test on every batch at the largest distance from clean images; nothing below FAR."""
    far = [
        (attack.divergence.at_least, attack.name, attack.statistic, attack.divergence.sure)
        for attack in results.attacks
        if attack.divergence is not None and attack.subjects["defense"].flagged == 0
    ]
    distance, name, statistic, sure = max(far, default=(0.0, "", None, 0.0))
    if distance < FAR or statistic is None:
        return ""
    return (
        f"{name} passes the test on every batch (mean statistic {statistic:.4f}, threshold "
        f"{results.defense.threshold:.4f}), though its images are at a distance d₁ ≥ {distance:.2f} of at most 2 from clean "
        f"ones (≥ {sure:.2f} by the ends of the intervals): a small MMD does not mean a small distance."
    )


def batches_of(count: int) -> str:
    """How many batches stand behind a number: beside one or two, that its interval is about no others."""
    return f"{plural(count, 'batch', 'batches')}{'' if count >= ENOUGH else ' only'}"


def intervals(results: EvaluationResults) -> str:
    """What the intervals of accuracies are about. Images of one batch share its route."""
    count, worst = len(results.batches), results.worst_case.get("defense")
    told = f"over {plural(results.run.images, 'image')} in {plural(count, 'batch', 'batches')}"
    if worst is not None and worst.per_batch_interval_batches is not None:
        return f"Intervals (95 %) of attacked accuracies are {told}; they allow for what images of a batch have in common."
    which = "this batch" if count == 1 else f"these {count} batches"
    return (
        f"Intervals (95 %) of attacked accuracies are {told}, as if images were independent. Images of one batch share its "
        f"route, so they are about {which} only: other batches may do otherwise."
    )


def headline_alarms(results: EvaluationResults) -> Alarms:
    """How many clean batches of the headline size are flagged: over random partitions, or else in the one of `clean`."""
    for row in results.study.false_alarms if results.study else ():
        if row.size == results.run.batch_size:
            return Alarms(row.rate, row.interval, row.independent)
    clean = results.clean.subjects["defense"]
    return Alarms(clean.flagged, clean.flagged_interval, results.clean.batches)


def by_threat(attacks: Iterable[AttackEntry]) -> dict[str, list[AttackEntry]]:
    """Attacks under their threat model, the weakest first."""
    groups: dict[str, list[AttackEntry]] = {threat: [] for threat in THREATS}
    for attack in attacks:
        groups.setdefault(attack.threat_model, []).append(attack)
    return {threat: group for threat, group in groups.items() if group}


def subjects(results: EvaluationResults) -> list[str]:
    """Every subject of the run, the known ones first and in the usual order."""
    there = [*results.clean.subjects, *results.worst_case]
    return [name for name in dict.fromkeys([*SUBJECTS, *there]) if name in there]


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"

"""How numbers and origins of published runs are written in Markdown."""

import re
from collections.abc import Sequence
from typing import Any

from published import Run

NORMS = {"linf": "ℓ∞", "l2": "ℓ2"}
REFUSING = ("reject", "magnet")


def origin(run: Run, base: str) -> str:
    """Where a table comes from, and what the run itself says of its numbers."""
    made, how = run.results["made_with"], run.results["run"]
    text = f"[`results/{run.name}`]({base}results/{run.name}/results.md), by `{how['command']}` (commit {run.commit}; "
    text += f"{made['device']}, torch {made['torch']}, {how['precision']}, seed {how['seed']})."
    return text + caveat(run)


def caveat(run: Run) -> str:
    """What has to be said against a run's numbers, with a space before it: by its age, and by its own checks."""
    return _age(run) + _checks(run)


def _age(run: Run) -> str:
    return f" **Measured on an earlier fit of this bundle; today's is of {run.refitted}.**" if run.refitted else ""


def _checks(run: Run) -> str:
    checks = run.results.get("sanity", ())  # a reproduction has none
    if not run.results.get("reliable", True):
        failed = ", ".join(check["name"] for check in checks if check["status"] == "failed")
        return f" **UNRELIABLE: failed checks ({failed}); do not quote these numbers.**"
    if any(check["status"] == "not converged" for check in checks):
        return " Not every attack had converged: read its accuracies as upper bounds."
    return ""


def refused(name: str, worst: dict[str, Any]) -> str:
    """How much a subject refused, if it may refuse at all. A refused image counts as not fooled."""
    if name not in REFUSING:
        return ""
    return f", {percent(worst['rejected']) if worst['rejected'] else 'none'} refused"


def interval(worst: dict[str, Any]) -> tuple[float, float]:
    """Of the worst case: over batches where that is known, else over images."""
    low, high = worst.get("per_batch_interval_batches") or worst["per_batch_interval"]
    return low, high


def left(worst: dict[str, Any]) -> str:
    low, high = interval(worst)
    return f"{percent(worst['per_batch'])} ({100 * low:.1f}–{100 * high:.1f})"


def budget(eps: float, norm: str) -> str:
    """As people write it: in grey levels where these are whole."""
    levels = 255 * eps
    whole = norm == "linf" and round(levels) >= 1 and abs(levels - round(levels)) < 1e-3
    return f"{NORMS.get(norm, norm)} {round(levels)}/255" if whole else f"{NORMS.get(norm, norm)} {eps:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def number(value: float | None, unit: str, spread: float | None = None) -> str:
    """A number of a paper's table: two decimals for percentages, as there, and its spread after ±."""
    if value is None:
        return "–"
    text = f"{value:.2f}" if unit == "%" else f"{value:.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    return text if spread is None else f"{text} ± {spread:.2f}"


def escaped(text: str) -> str:
    """Text as a cell of a Markdown table shows it."""
    return re.sub(r"[\\|`*<>\[\]]", r"\\\g<0>", " ".join(text.split()))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"| {cell} " if cell else "| " for cell in line) + "|" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])

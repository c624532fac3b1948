"""What the defence withstands, in four rows: the table on the README's first page and the bars of its picture."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from cells import budget, caveat, interval, percent
from cells import table as markdown_table
from published import Run


class Score(NamedTuple):
    """Accuracies and the share of flagged batches under one attack, all between 0 and 1."""

    alone: float
    defended: float
    flagged: float


class Row(NamedTuple):
    attacker: str
    score: Score
    interval: tuple[float, float] | None = None  # of the defended accuracy, where it is the worst case
    weaker: tuple[float, Score] | None = None  # a smaller budget that does more harm, because it passes the test


def rows(run: Run) -> list[Row]:
    """Nobody, someone who does not know the defence, the paper's attack, someone who knows everything."""
    results = run.results
    worst = results["worst_case"]["defense"]
    return [
        Row("nobody: clean images", _clean(results)),
        _unaware(results),
        Row("runs the paper's attack (Algorithm 3)", _score(_named(results, "paper"))),
        Row(
            "knows everything (the worst of all attacks)",
            Score(results["worst_case"]["bare"]["per_batch"], worst["per_batch"], _flagged_in_worst_case(results)),
            interval(worst),
        ),
    ]


def withstands(runs: Sequence[Run]) -> str:
    """The four rows of the first run as a Markdown table, another mode's beside them, and what was measured under it."""
    head = ["attacker", "classifier alone", "with the defence", "batches flagged", *(["hardened mode"] * (len(runs) > 1))]
    lines = []
    for row, *others in zip(*map(rows, runs), strict=True):
        cells = [percent(row.score.alone), _defended(row), _flags(row.score.flagged)]
        if row.weaker:
            eps, score = row.weaker
            at = budget(eps, runs[0].results["run"]["norm"]).split()[1]
            smaller = (percent(score.alone), percent(score.defended), _flags(score.flagged))
            cells = [f"{cell}; {less} at {at}" for cell, less in zip(cells, smaller, strict=True)]
        lines.append([row.attacker, *cells, *map(_defended, others)])
    made = runs[0].results["run"]
    about = " (of these batches only)" if _batches(runs[0]) < 3 else ""  # fewer say nothing of others
    said = []
    for name, run in zip(("Accuracy of", "Hardened mode:"), runs, strict=False):
        said += [f"{name} {_measured(run)}.", *([caveat(run).strip()] if caveat(run) else [])]
    at = budget(made["eps"], made["norm"])
    said.append(f"Budget {at}, protocol `{made['protocol']}`, 95 % interval{about} in brackets.")
    return "\n".join([markdown_table(head, lines), "", *said])


def _measured(run: Run) -> str:
    made, clean, batches = run.results["run"], run.results["clean"], _batches(run)
    told = f"{batches} batch{'' if batches == 1 else 'es'} of {made['batch_size']}"
    return (
        f"`{run.results['defense']['classifier']}` on `{made['data']}`, {made['images']:,} images in {told} "
        f"({clean['images']:,} images in the first row)"
    )


def _batches(run: Run) -> int:
    return len(run.results["worst_case"]["defense"]["chosen"])


def _defended(row: Row) -> str:
    text = percent(row.score.defended)
    return f"{text} ({100 * row.interval[0]:.1f}–{100 * row.interval[1]:.1f})" if row.interval else text


def _flags(share: float) -> str:
    return {0.0: "none", 1.0: "all"}.get(share, percent(share))


def _clean(results: dict[str, Any]) -> Score:
    clean, size = results["clean"]["subjects"], results["run"]["batch_size"]
    (alarms,) = (entry["rate"] for entry in results["detector"]["false_alarms"] if entry["size"] == size)
    return Score(clean["bare"]["accuracy"], clean["defense"]["accuracy"], alarms)


def _unaware(results: dict[str, Any]) -> Row:
    """PGD on the classifier: at the full budget, and at the smaller one that passes the test and leaves the least."""
    full = _score(_named(results, "pgd"))
    others = [(attack["eps"], _score(attack)) for attack in _counted(results) if attack["threat_model"] == "bare"]
    passing = [(eps, score) for eps, score in others if score.flagged < full.flagged and score.defended < full.defended]
    weaker = min(passing, key=lambda one: one[1].defended, default=None)
    return Row("does not know the defence (PGD)", full, weaker=weaker)


def _flagged_in_worst_case(results: dict[str, Any]) -> float:
    """The share of batches that are flagged under the attack that is the worst for each."""
    attacks = {attack["name"]: attack for attack in _counted(results)}
    chosen = results["worst_case"]["defense"]["chosen"]
    flags = [attacks[name]["batches"][number]["subjects"]["defense"]["flagged"] for number, name in enumerate(chosen)]
    return sum(map(bool, flags)) / len(flags)


def _named(results: dict[str, Any], name: str) -> dict[str, Any]:
    (attack,) = (attack for attack in _counted(results) if attack["name"] == name)
    return attack


def _counted(results: dict[str, Any]) -> Sequence[dict[str, Any]]:
    return [attack for attack in results["attacks"] if attack["in_worst_case"]]


def _score(attack: dict[str, Any]) -> Score:
    defense = attack["subjects"]["defense"]
    return Score(attack["subjects"]["bare"]["accuracy"], defense["accuracy"], defense["flagged"])

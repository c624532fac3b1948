"""Tables of published runs in README.md and docs/, made from `results/`.

python tools/tables.py                  rewrite them
python tools/tables.py --check          only compare: exit code 1 where they differ
python tools/tables.py --add RUN NAME   copy the folder of a run to results/NAME

A region stands between `<!-- table: NAME -->` and `<!-- end -->`. NAME is a run, or `headline` (the evaluations that the
index lists under that name), or `table1` (what was measured of the paper's Table 1), or `reproductions` (all tables of the
paper that were measured, and which were not).
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from published import Published, PublishError, Run, add, belongs, read

PAGES = ("README.md", "docs/reproduce.md")
REGION = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
PAPER = (  # as in twoprong.names, which need not be installed here
    *("table1-linf", "table1-l2", "imagenet", "transfer", "batch-size", "mixed", "bpda"),
    *("threshold", "alpha", "noise", "two-pronged", "compute", "with-at"),
)
SUBJECTS = {
    "defense": "the defence",
    "bare": "the classifier alone",
    "denoiser": "every batch denoised",
    "reject": "flagged batches refused instead of denoised",
    "magnet": "MagNet (Meng & Chen 2017)",
    "against": "the other bundle",
}
NORMS = {"linf": "ℓ∞", "l2": "ℓ2"}
REFUSING = ("reject", "magnet")


def main(arguments: Sequence[str] | None = None, root: Path = Path(__file__).parents[1]) -> int:
    parser = argparse.ArgumentParser(description="Tables of published runs, made from results/.")
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--add", nargs=2, metavar=("RUN", "NAME"), help="publish the folder RUN as results/NAME")
    given = parser.parse_args(arguments)
    try:
        if given.add:
            run, name = given.add
            print(f"results/{name}: {add(Path(run), root / 'results' / name):,} bytes; now its entry in results/index.toml")
            return 0
        pages = filled(root)
    except PublishError as error:
        print(error, file=sys.stderr)
        return 2
    differ = [page for page, text in pages.items() if (root / page).read_text(encoding="utf-8") != text]
    if not given.check:
        for page in differ:
            (root / page).write_text(pages[page], encoding="utf-8")
    for page in differ:
        print(f"{page}: differs from results/; run `make tables`" if given.check else f"{page}: rewritten")
    return int(given.check and bool(differ))


def filled(root: Path) -> dict[str, str]:
    """Every page with its regions as `results/` has them. Raises PublishError."""
    published, problems, pages, seen = read(root / "results"), list[str](), dict[str, str](), set[str]()
    for page in PAGES:
        text = (root / page).read_text(encoding="utf-8")
        names = REGION.findall(text)
        seen |= {name for name, _ in names}
        if any("<!-- table:" in body for _, body in names) or text.count("<!-- table:") != len(names):
            problems.append(f"{page}: expected `<!-- end -->` after every `<!-- table: NAME -->`, got one without")
        unknown = [name for name, _ in names if not _known(name, published)]
        problems += [f"{page}: table: expected a published run in results/index.toml, got {name!r}" for name in unknown]
        if not problems:
            pages[page] = REGION.sub(partial(_region, published=published, base="../" * page.count("/")), text)
    if published.headline and "headline" not in seen:
        problems.append("README.md: expected `<!-- table: headline -->` and `<!-- end -->` around the headline, got none")
    if problems:
        raise PublishError(problems)
    return pages


def _known(name: str, published: Published) -> bool:
    return name in {*published.runs, "reproductions", "table1"} or (name == "headline" and bool(published.headline))


def _region(match: re.Match[str], published: Published, base: str) -> str:
    """A region anew. `base` leads from its page to the root."""
    name = match[1]
    if name == "headline":
        body = _headline([published.runs[one] for one in published.headline], base)
    elif name == "reproductions":
        body = _reproductions(published, base)
    elif name == "table1":
        body = _table1(published, base)
    elif published.runs[name].kind == "evaluation":
        body = _subjects(published.runs[name], base)
    else:
        body = _reproduction([published.runs[name]], published, base)
    return f"<!-- table: {name} -->\n{body}\n<!-- end -->"


def _subjects(run: Run, base: str) -> str:
    """An evaluation's subjects side by side."""
    clean, worst = run.results["clean"]["subjects"], run.results["worst_case"]
    rows = []
    for name in _ordered(clean):
        before = _percent(clean[name]["accuracy"])
        before += f" ({_percent(clean[name]['rejected'])} refused)" if clean[name]["rejected"] else ""
        rows.append([SUBJECTS.get(name, name), before, _left(worst[name]) + _refused(name, worst[name])])
    return f"{_table(['', 'right on clean images', 'not fooled in the worst case'], rows)}\n\n{_origin(run, base)}"


def _headline(runs: Sequence[Run], base: str) -> str:
    """One row per evaluation, and under the table where each comes from."""
    others = [name for name in _ordered(name for run in runs for name in run.results["worst_case"]) if name != "defense"]
    head = ["defence", "classifier", "budget", "protocol", "images", "clean, bare / defended", "the paper's attack leaves"]
    rows = []
    for run in runs:
        clean, worst, made = run.results["clean"]["subjects"], run.results["worst_case"], run.results["run"]
        paper = [
            attack["subjects"]["defense"]["accuracy"]
            for attack in run.results["attacks"]
            if (attack["attack"], attack["target"], attack["in_worst_case"]) == ("paper", "defense", True)
        ]
        rows.append(
            [
                _cell(run.title),
                _cell(run.results["defense"]["classifier"]),
                _budget(made["eps"], made["norm"]),
                f"`{made['protocol']}`",
                f"{made['images']:,}",
                f"{_percent(clean['bare']['accuracy'])} / {_percent(clean['defense']['accuracy'])} "
                f"of {run.results['clean']['images']:,}",
                _percent(min(paper)) if paper else "–",
                f"**{_left(worst['defense'])}**",
                *(
                    _percent(worst[name]["per_batch"]) + _refused(name, worst[name]) if name in worst else "–"
                    for name in others
                ),
            ]
        )
    head += ["worst case (95 %)", *(f"worst case, `{name}`" for name in others)]
    return f"{_table(head, rows)}\n\n" + "\n".join(f"- {_cell(run.title)}: {_origin(run, base)}" for run in runs)


def _reproductions(published: Published, base: str) -> str:
    """The paper's tables that were measured, in its order, and the names of those that were not."""

    def table(run: Run) -> tuple[int, str]:
        return PAPER.index(run.results["name"]), run.results["run"]["classifier"] or ""

    there = sorted(published.of("reproduction"), key=table)
    missing = [f"`{name}`" for name in PAPER if name not in {run.results["name"] for run in there}]
    parts = [_reproduction(list(runs), published, base) for _, runs in groupby(there, key=table)]
    return "\n\n".join([*parts, *([f"Not run yet: {', '.join(missing)}."] if missing else [])])


def _reproduction(runs: Sequence[Run], published: Published, base: str) -> str:
    """A table of the paper, cell by cell; `strong` stands where an evaluation attacked the same with everything we know.

    Several runs of it, each of other cells, stand in one table, under the first one's title and with the last one's words.
    """
    results = runs[-1].results
    rows, quoted = list[list[str]](), dict[tuple[str, str], list[str]]()
    for run in runs:
        for row in run.results["rows"]:
            beside = [published.runs[name] for name in run.strong.get(row["name"], ())]
            rows += [[_cell(row["name"]), *_measured(cell, beside)] for cell in row["cells"]]
        units = [cell["unit"] for cell in run.results["rows"][0]["cells"]]
        for row in run.results["quoted"]:
            for column, value, unit in zip(run.results["columns"], row["paper"], units, strict=True):
                quoted[row["name"], column] = [_cell(row["name"]), _cell(column), _number(value, unit), "not run", *[""] * 5]
    measured = [(row["name"], cell["column"]) for run in runs for row in run.results["rows"] for cell in row["cells"]]
    if twice := {" / ".join(key) for key in measured if measured.count(key) > 1}:
        names = ", ".join(run.name for run in runs)
        raise PublishError([f"results/index.toml: expected each cell once in {names}, got twice {', '.join(twice)}"])
    rows += [line for key, line in quoted.items() if key not in measured]
    head = ["row", "column", "paper", "ours, by its protocol", "95 %", "by `strong`", "images", "flagged", "minutes"]
    instead = results["run"]["classifier"]
    parts = [
        f"### {_cell(runs[0].title)}",
        f"{results['source']}: {results['title']}. {results['note']}",
        f"Every protected classifier was a {instead}, whatever a row is called." if instead else "",
        _table(head, rows),
        *((f"{_names(run)}: " if len(runs) > 1 else "") + _origin(run, base) for run in runs),
        *(
            f"`strong`, {row}: {_origin(published.runs[name], base)}"
            for run in runs
            for row, names in run.strong.items()
            for name in names
        ),
    ]
    return "\n\n".join(part for part in parts if part)


def _names(run: Run) -> str:
    return ", ".join(_cell(row["name"]) for row in run.results["rows"])


def _table1(published: Published, base: str) -> str:
    """The paper's main table as far as it was run, without what is only quoted."""
    runs = [run for run in published.of("reproduction") if run.results["name"].startswith("table1")]
    rows: dict[tuple[str, ...], None] = {}  # each once: the clean column of both norms is the same number
    for run in runs:
        for row in run.results["rows"]:
            beside = [published.runs[name] for name in run.strong.get(row["name"], ())]
            for cell in row["cells"]:
                _, paper, ours, interval, strong, images, *_ = _measured(cell, beside)
                attack = cell["attack"]
                what = f"attacked, {_budget(attack['eps'], attack['norm'])}" if attack else "clean"
                rows[_cell(row["name"]), what, paper, f"{ours} ({interval})", strong, images] = None
    head = ["", "images", "paper, %", "ours by its attack, % (95 %)", "ours by `strong`", "how many"]
    beside = [published.runs[name] for run in runs for names in run.strong.values() for name in names]
    named = dict.fromkeys(run.name for run in (*runs, *beside))
    origins = [f"- {_cell(published.runs[name].title)}: {_origin(published.runs[name], base)}" for name in named]
    return f"{_table(head, list(rows))}\n\n" + "\n".join(origins)


def _measured(cell: dict[str, Any], beside: Sequence[Run]) -> list[str]:
    paper = _number(cell["paper"], cell["unit"]) + (f" ± {cell['spread']:.2f}" if cell["spread"] is not None else "")
    subject = "bare" if cell["spec"].get("bare") else "defense"
    strong = [
        f"{_left(run.results['worst_case'][subject])} of {run.results['run']['images']:,}"
        for run in beside
        if belongs(cell, run)
    ]
    reads = cell.get("surrogate_accuracy")
    return [
        _cell(cell["column"]) + ("" if reads is None else f" (reads {reads:.1f} %)"),
        paper,
        _number(cell["ours"], cell["unit"]),
        "–" if cell["interval"] is None else f"{cell['interval'][0]:.1f}–{cell['interval'][1]:.1f}",
        ", ".join(strong) or "–",
        "–" if cell["images"] is None else f"{cell['images']:,}",
        "–" if cell["flagged"] is None else f"{100 * cell['flagged']:.0f} %",
        f"{cell['seconds'] / 60:.1f}" if cell["seconds"] >= 3 else "< 0.1",
    ]


def _origin(run: Run, base: str) -> str:
    """Where a table comes from, and what the run itself says of its numbers."""
    made, how = run.results["made_with"], run.results["run"]
    origin = f"[`results/{run.name}`]({base}results/{run.name}/results.md), by `{how['command']}` (commit {run.commit}; "
    origin += f"{made['device']}, torch {made['torch']}, {how['precision']}, seed {how['seed']})."
    checks = run.results.get("sanity", ())  # a reproduction has none
    if not run.results.get("reliable", True):
        failed = ", ".join(check["name"] for check in checks if check["status"] == "failed")
        return f"{origin} **UNRELIABLE: failed checks ({failed}); do not quote these numbers.**"
    if any(check["status"] == "not converged" for check in checks):
        return f"{origin} Not every attack had converged: read what is left as upper bounds."
    return origin


def _ordered(there: Iterable[str]) -> list[str]:
    names = set(there)
    return [name for name in dict.fromkeys([*SUBJECTS, *sorted(names)]) if name in names]


def _refused(name: str, worst: dict[str, Any]) -> str:
    """Of a subject that may refuse, how much it did: what is refused counts as not fooled."""
    if name not in REFUSING:
        return ""
    return f", {_percent(worst['rejected']) if worst['rejected'] else 'none'} refused"


def _left(worst: dict[str, Any]) -> str:
    low, high = worst["per_batch_interval"]
    return f"{_percent(worst['per_batch'])} ({100 * low:.1f}–{100 * high:.1f})"


def _budget(eps: float, norm: str) -> str:
    """As people write it: in grey levels where these are whole."""
    levels = 255 * eps
    whole = norm == "linf" and round(levels) >= 1 and abs(levels - round(levels)) < 1e-3
    return f"{NORMS.get(norm, norm)} {round(levels)}/255" if whole else f"{NORMS.get(norm, norm)} {eps:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _number(value: float | None, unit: str) -> str:
    """A number of a paper's table: two decimals for percentages, as there."""
    if value is None:
        return "–"
    return f"{value:.2f}" if unit == "%" else f"{value:.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def _cell(text: str) -> str:
    return re.sub(r"[\\|`*<>\[\]]", r"\\\g<0>", " ".join(text.split()))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"| {cell} " if cell else "| " for cell in line) + "|" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


if __name__ == "__main__":
    sys.exit(main())

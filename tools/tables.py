"""Tables of published runs in README.md and docs/, made from `results/`.

python tools/tables.py                  rewrite them
python tools/tables.py --check          only compare: exit code 1 where they differ
python tools/tables.py --add RUN NAME   copy the folder of a run to results/NAME

A region stands between `<!-- table: NAME -->` and `<!-- end -->`. NAME is a run, or one of these:
headline       the evaluations that the index lists under that name
withstands     the first of them in four rows, by what the attacker knows, with the index's `hardened` beside it
table1         what was measured of the paper's Table 1
reproductions  all tables of the paper that were measured, and the names of the others
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from cells import budget, escaped, left, number, origin, percent, refused, table
from published import Published, PublishError, Run, add, belongs, read
from withstands import withstands

PAGES = ("README.md", "docs/results.md", "docs/reproduce.md")
REGION = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
PAPER = (  # as in twoprong.names, which need not be installed here
    *("table1-linf", "table1-l2", "imagenet", "transfer", "batch-size", "mixed", "bpda"),
    *("threshold", "alpha", "noise", "two-pronged", "compute", "with-at"),
)
SUBJECTS = {
    "defense": "the defence",
    "bare": "the classifier alone",
    "denoiser": "every batch denoised",
    "robust": "the robust network alone",
    "gate": "the gate without the test",
    "reject": "flagged batches refused instead of denoised",
    "magnet": "MagNet (Meng & Chen 2017)",
    "against": "the other bundle",
}


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
    for name in ("withstands", "headline") if published.headline else ():
        if name not in seen:
            problems.append(f"{' or '.join(PAGES[:2])}: expected `<!-- table: {name} -->` and `<!-- end -->`, got none")
    if problems:
        raise PublishError(problems)
    return pages


def _known(name: str, published: Published) -> bool:
    return name in {*published.runs, "reproductions", "table1", *(("headline", "withstands") if published.headline else ())}


def _region(match: re.Match[str], published: Published, base: str) -> str:
    """A region with its table made anew. `base` leads from its page to the root."""
    name = match[1]
    if name == "headline":
        body = _headline([published.runs[one] for one in published.headline], base)
    elif name == "withstands":
        body = withstands(published.first())
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
        before = percent(clean[name]["accuracy"])
        before += f" ({percent(clean[name]['rejected'])} refused)" if clean[name]["rejected"] else ""
        rows.append([SUBJECTS.get(name, name), before, left(worst[name]) + refused(name, worst[name])])
    return f"{table(['', 'accuracy on clean images', 'not fooled, worst case (95 %)'], rows)}\n\n{origin(run, base)}"


def _headline(runs: Sequence[Run], base: str) -> str:
    """One row per evaluation, and under the table where each comes from."""
    others = [name for name in _ordered(name for run in runs for name in run.results["worst_case"]) if name != "defense"]
    head = ["defence", "protocol", "budget", "worst case (95 %)", "clean, bare / defended", "the paper's attack leaves"]
    head += [f"worst case, `{name}`" for name in others] + ["classifier", "images (batches)"]
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
                escaped(run.title),
                f"`{made['protocol']}`",
                budget(made["eps"], made["norm"]),
                f"**{left(worst['defense'])}**",
                f"{percent(clean['bare']['accuracy'])} / {percent(clean['defense']['accuracy'])} "
                f"of {run.results['clean']['images']:,}",
                percent(min(paper)) if paper else "–",
                *(
                    percent(worst[name]["per_batch"]) + refused(name, worst[name]) if name in worst else "–"
                    for name in others
                ),
                escaped(run.results["defense"]["classifier"]),
                f"{made['images']:,} ({len(worst['defense']['chosen'])})",
            ]
        )
    return f"{table(head, rows)}\n\n" + "\n".join(f"- {escaped(run.title)}: {origin(run, base)}" for run in runs)


def _reproductions(published: Published, base: str) -> str:
    """The paper's tables that were measured, in its order, and the names of those that were not."""

    def table(run: Run) -> tuple[int, str]:
        return PAPER.index(run.results["name"]), run.results["run"]["classifier"] or ""

    there = sorted(published.of("reproduction"), key=table)
    missing = [f"`{name}`" for name in PAPER if name not in {run.results["name"] for run in there}]
    parts = [_reproduction(list(runs), published, base) for _, runs in groupby(there, key=table)]
    return "\n\n".join([*parts, *([f"Not run yet: {', '.join(missing)}."] if missing else [])])


def _reproduction(runs: Sequence[Run], published: Published, base: str) -> str:
    """A table of the paper, cell by cell, with the worst case by `strong` where an evaluation attacked the same defence.

    Several runs of one table, each with other cells, share one table: the title is the first run's, the note the last's.
    """
    results = runs[-1].results
    rows, quoted = list[list[str]](), dict[tuple[str, str], list[str]]()
    for run in runs:
        for row in run.results["rows"]:
            beside = [published.runs[name] for name in run.strong.get(row["name"], ())]
            rows += [[escaped(_called(run, row)), *_measured(cell, beside)] for cell in row["cells"]]
        units = [cell["unit"] for cell in run.results["rows"][0]["cells"]]
        for row in run.results["quoted"]:
            spreads = row.get("spread") or [None] * len(units)
            for column, value, unit, spread in zip(run.results["columns"], row["paper"], units, spreads, strict=True):
                quoted[row["name"], column] = [
                    escaped(row["name"]),
                    escaped(column),
                    number(value, unit, spread),
                    "not run",
                    *[""] * 5,
                ]
    cells = [(run, row, cell["column"]) for run in runs for row in run.results["rows"] for cell in row["cells"]]
    measured = {(row["name"], column) for _, row, column in cells}
    shown = [(_called(run, row), column) for run, row, column in cells]
    if twice := {" / ".join(key) for key in shown if shown.count(key) > 1}:
        names = ", ".join(run.name for run in runs)
        raise PublishError([f"results/index.toml: expected each cell once in {names}, got twice {', '.join(twice)}"])
    rows += [line for key, line in quoted.items() if key not in measured]
    head = ["row", "column", "paper", "ours, by its protocol", "95 %", "by `strong`", "images", "flagged", "minutes"]
    instead = results["run"]["classifier"]
    parts = [
        f"### {escaped(runs[0].title)}",
        f"{results['source']}: {results['title']}. {results['note']}",
        f"Every protected classifier was a {instead}, whatever a row is called." if instead else "",
        table(head, rows),
        *((f"{_names(run)}: " if len(runs) > 1 else "") + origin(run, base) for run in runs),
        *(
            f"`strong`, {row}: {origin(published.runs[name], base)}"
            for run in runs
            for row, names in run.strong.items()
            for name in names
        ),
    ]
    return "\n\n".join(part for part in parts if part)


def _names(run: Run) -> str:
    return ", ".join(escaped(_called(run, row)) for row in run.results["rows"])


def _called(run: Run, row: dict[str, Any]) -> str:
    """The row's name, and the preset of its run. A row's own preset is in its name; older runs had our settings."""
    preset = run.results["run"].get("scale", {}).get("preset")
    own = any(cell["spec"].get("preset") for cell in row["cells"])
    name = str(row["name"])
    return f"{name}, by preset {preset}" if preset and not own else name


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
                what = f"attacked, {budget(attack['eps'], attack['norm'])}" if attack else "clean"
                rows[escaped(_called(run, row)), what, paper, f"{ours} ({interval})", strong, images] = None
    head = ["", "images", "paper, %", "ours, its attack, % (95 %)", "ours, by `strong`", "number of images"]
    beside = [published.runs[name] for run in runs for names in run.strong.values() for name in names]
    named = dict.fromkeys(run.name for run in (*runs, *beside))
    origins = [f"- {escaped(published.runs[name].title)}: {origin(published.runs[name], base)}" for name in named]
    return f"{table(head, list(rows))}\n\n" + "\n".join(origins)


def _measured(cell: dict[str, Any], beside: Sequence[Run]) -> list[str]:
    paper = number(cell["paper"], cell["unit"], cell["spread"])
    subject = "bare" if cell["spec"].get("bare") else "defense"
    strong = [
        f"{left(run.results['worst_case'][subject])} of {run.results['run']['images']:,}"
        for run in beside
        if belongs(cell, run)
    ]
    surrogate = cell.get("surrogate_accuracy")
    return [
        escaped(cell["column"]) + ("" if surrogate is None else f" (accuracy {surrogate:.1f} %)"),
        paper,
        number(cell["ours"], cell["unit"], cell.get("deviation")),
        "–" if cell["interval"] is None else f"{cell['interval'][0]:.1f}–{cell['interval'][1]:.1f}",
        ", ".join(strong) or "–",
        "–" if cell["images"] is None else f"{cell['images']:,}",
        "–" if cell["flagged"] is None else f"{100 * cell['flagged']:.0f} %",
        f"{cell['seconds'] / 60:.1f}" if cell["seconds"] >= 3 else "< 0.1",
    ]


def _ordered(there: Iterable[str]) -> list[str]:
    names = set(there)
    return [name for name in dict.fromkeys([*SUBJECTS, *sorted(names)]) if name in names]


if __name__ == "__main__":
    sys.exit(main())

"""Published runs: `results/NAME/` holds what a run wrote, `results/index.toml` says which is which.

`read` gives them, or refuses with everything that is wrong: a missing file or command, a path of somebody's machine, an
entry that points nowhere, a run put beside a table that it does not belong to.
"""

import html
import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = ("evaluation", "reproduction")
FILES = ("results.json", "results.md", "report.html")
BUNDLES = "src/twoprong/bundles"  # those that come with the package
LIMIT = 4_000_000  # bytes of a folder; `strong` takes 2.1 million on 1,000 images, hardened 3.1 million on 500
KEYS = {"kind", "title", "strong", "commit"}
MACHINE_PATH = re.compile(
    r"""(?:^|[\s='"`(\[,;:])(?:/(?=[\w.])|~[\w.-]*/|[A-Za-z]:[\\/](?=[\w.])|\\\\(?=\w)|file://)[^\s'"`<]*"""
)
EVALUATED = re.compile(r"twoprong evaluate ([\w-]+)(?: |$)")
PICTURE = re.compile(r"data:[\w/+.-]+;base64,[\w+/=]*")


class PublishError(Exception):
    """What cannot be published or filled in: what was expected, what is there, what to do. One line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))


@dataclass(frozen=True)
class Run:
    """A published run: the content of its results.json, and what the index says of it."""

    name: str
    kind: str
    title: str
    results: dict[str, Any]
    commit: str
    strong: dict[str, list[str]] = field(default_factory=dict)  # of a reproduction: row -> evaluations of its defence
    refitted: str | None = None  # when the packaged bundle that was evaluated was fitted anew, if that was later


@dataclass(frozen=True)
class Published:
    runs: dict[str, Run]
    headline: tuple[str, ...]  # evaluations, in the order of docs/results.md
    hardened: str | None = None  # the one of the hardened mode, for the README's table beside the first

    def first(self) -> list[Run]:
        """The evaluations of the README's table: the first of the headline, and that of the hardened mode."""
        return [self.runs[name] for name in (self.headline[0], self.hardened) if name is not None]

    def of(self, kind: str) -> list[Run]:
        return [run for run in self.runs.values() if run.kind == kind]


def read(folder: Path) -> Published:
    """All published runs under `folder`. Raises PublishError with every problem there is."""
    index: dict[str, Any] = tomllib.loads((folder / "index.toml").read_text(encoding="utf-8"))
    headline, hardened = tuple(index.pop("headline", ())), index.pop("hardened", None)
    problems, runs = list[str](), dict[str, Run]()
    for name in sorted({path.name for path in folder.iterdir() if path.is_dir()} - index.keys()):
        problems.append(f"results/{name}: expected an entry [{name}] in results/index.toml, got none")
    for name, entry in index.items():
        found = list(_problems(folder / name, entry))
        problems += [f"results/{name}: {problem}" for problem in found]
        if not found:
            results = _load(folder / name)
            commit = results["made_with"]["commit"] or entry["commit"]
            refitted = _refitted(results["run"], folder.parent / BUNDLES)
            runs[name] = Run(name, entry["kind"], entry["title"], results, commit, entry.get("strong", {}), refitted)
    published = Published(runs, headline, hardened)
    for key, name in [*(("headline", name) for name in headline), *([("hardened", hardened)] if hardened else [])]:
        if name not in index or (name in runs and runs[name].kind != "evaluation"):
            problems.append(f"results/index.toml: {key}: expected an evaluation in the index, got {name!r}")
    for run in published.of("reproduction"):
        problems += [f"results/index.toml: [{run.name}] strong: {problem}" for problem in _links(run, runs)]
    if problems:
        raise PublishError(problems)
    return published


def belongs(cell: dict[str, Any], run: Run) -> bool:
    """Whether an evaluation attacked what a cell of a table measures: all slots, same budget, batches and classifier."""
    attack, spec, made = cell["attack"], cell["spec"], run.results["run"]
    if attack is None or spec.get("surrogate") or spec.get("share", 1.0) != 1.0 or spec.get("measure") == "average":
        return False
    same = (attack["norm"], cell["batch_size"]) == (made["norm"], made["batch_size"])
    return same and math.isclose(attack["eps"], made["eps"]) and cell["classifier"] == run.results["defense"]["classifier"]


def add(run: Path, folder: Path) -> int:
    """Copy what a run wrote to `folder`, results.json without white space; returns the bytes there."""
    if folder.exists():
        raise PublishError([f"{folder}: expected a new name, got one that is published; remove that one first"])
    results = _load(run)
    if (kind := results.get("kind")) not in KINDS:
        raise PublishError([f"{run}: expected the folder of an {' or '.join(KINDS)}, got kind {kind!r} in its results.json"])
    if missing := [file for file in FILES if not (run / file).is_file()]:
        raise PublishError([f"{run}: expected {', '.join(FILES)}, got no {', '.join(missing)}; let the run end"])
    folder.mkdir(parents=True)
    for file in FILES[1:]:
        (folder / file).write_bytes((run / file).read_bytes())
    packed = json.dumps(results, separators=(",", ":"), ensure_ascii=False) + "\n"
    (folder / "results.json").write_text(packed, encoding="utf-8")
    return sum(path.stat().st_size for path in folder.iterdir())


def _problems(folder: Path, entry: Any) -> Iterator[str]:
    """What is wrong with one run, as far as it can be read."""
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if kind not in KINDS or not isinstance(entry.get("title"), str) or entry.keys() - KEYS:
        yield f"expected kind ({' or '.join(KINDS)}), title, and perhaps strong or commit in the index, got {entry}"
        return
    if wrong := [row for row, names in entry.get("strong", {}).items() if not isinstance(names, list)]:
        yield f"expected a list of names in the index, strong, for {', '.join(wrong)}"
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if missing := [file for file in FILES if file not in there]:
        yield f"expected {', '.join(FILES)}, got no {', '.join(missing)}; publish the run by tools/tables.py --add"
        return
    if more := sorted(there - set(FILES)):
        yield f"expected only {', '.join(FILES)}, got {', '.join(more)}; take it out"
    if (size := sum((folder / file).stat().st_size for file in FILES)) > LIMIT:
        yield f"expected at most {LIMIT:,} bytes, got {size:,}; publish the run by tools/tables.py --add, which packs it"
    results = _load(folder)
    if results.get("kind") != kind:
        yield f"expected kind {kind!r} as in the index, got {results.get('kind')!r} in results.json"
        return
    if not results["run"]["command"]:
        yield "expected the exact command in results.json (run.command), got none; make the run on the command line"
    if not (results["made_with"]["commit"] or entry.get("commit")):
        yield "expected a commit, got none in results.json; make the run in a checkout, or give `commit` in the index"
    if results.get("scale") == "smoke":
        yield "expected --scale full, got smoke, which says nothing about the paper"
    for where, path in _machine_paths(folder, results):
        yield f"expected relative paths, got {path} in {where}; make the run again from the folder that holds these files"


def _machine_paths(folder: Path, results: Any) -> Iterator[tuple[str, str]]:
    texts = [(f"results.json ({where})", text) for where, text in _strings(results)]
    pages = [path for path in sorted(folder.iterdir()) if path.suffix in (".md", ".html")]
    texts += [(path.name, html.unescape(path.read_text(encoding="utf-8"))) for path in pages]
    for where, text in texts:
        if found := MACHINE_PATH.search(PICTURE.sub("", text)):
            yield where, found.group().strip("\n\r\t ='\"`([,;:")


def _strings(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a results.json with its place, names of entries included."""
    if isinstance(value, str):
        yield where, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        if isinstance(key, str):
            yield where, key
        yield from _strings(one, f"{where}.{key}".lstrip("."))


def _refitted(run: dict[str, Any], bundles: Path) -> str | None:
    """The day of a packaged bundle's fit, if the evaluation of its name is older: then it was of another bundle."""
    found = EVALUATED.match(run["command"])
    manifest = bundles / found[1] / "manifest.json" if found else bundles
    if not manifest.is_file():
        return None
    fitted = str(json.loads(manifest.read_text(encoding="utf-8"))["about"]["fitted"])
    return fitted[:10] if run["started"] < fitted else None


def _links(run: Run, runs: dict[str, Run]) -> Iterator[str]:
    """What is wrong with the evaluations that are put beside the rows of a table."""
    rows = {row["name"]: row["cells"] for row in run.results["rows"]}
    for row, names in run.strong.items():
        if row not in rows:
            yield f"expected one of the rows {', '.join(map(repr, rows))}, got {row!r}"
            continue
        for name in names:
            other = runs.get(name)
            if other is None or other.kind != "evaluation" or other.results["run"]["protocol"] != "strong":
                yield f"{row}: expected a published evaluation by `strong`, got {name!r}"
            elif other.results["run"]["data"] != run.results["run"]["data"]:
                yield f"{row}: expected data {run.results['run']['data']}, got {other.results['run']['data']} in {name}"
            elif not any(belongs(cell, other) for cell in rows[row]):
                yield f"{row}: {name} has classifier, budget or batches of none of its cells"


def _load(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "results.json").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise PublishError([f"{folder.name}/results.json: expected results of a run, got {error}"]) from None

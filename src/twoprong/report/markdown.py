"""results.md: an evaluation's results as a table for a paper or a pull request, and the words the page shares with it."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

THREATS = {
    "noise": "knows nothing: random noise, the baseline",
    "transfer": "knows another classifier, not ours",
    "bare": "knows our classifier, not the defence",
    "paper": "knows everything; runs the attacks the paper ran",
    "adaptive": "knows everything: weights, reference, threshold, the law of the noise",
    "partial": "knows everything, holds a share of the slots and wants its own images misread",
    "disrupt": "knows everything, holds a share of the slots and wants a false alarm that spoils the others",
}
NORMS = {"linf": "ℓ∞", "l2": "ℓ2"}
SUBJECTS = {
    "defense": "the defence",
    "bare": "undefended",
    "denoiser": "every batch denoised",
    "reject": "flagged batches refused",
    "magnet": "MagNet",
    "against": "the other bundle",
}


def to_markdown(results: dict[str, Any]) -> str:
    """The results as GitHub Markdown: verdict, headline, attacks, worst case, baselines, and how they were made."""
    run, made = results["run"], results["made_with"]
    level, told = verdict(results)
    budgeted = f"ε = {budget(run['eps'], run['norm'])} ({NORMS.get(run['norm'], run['norm'])})"
    title = f"{run['protocol']} protocol, {_cell(results['defense'].get('data') or 'unnamed data')}, {budgeted}"
    whole = by_threat(attack for attack in results["attacks"] if attack["slots"] is None)
    shared = by_threat(attack for attack in results["attacks"] if attack["slots"] is not None)
    commit = f"commit {made['commit'][:12]}" if made["commit"] else "commit unknown"
    parts = [
        f"# {'UNRELIABLE: ' if level == 'bad' else ''}{title}",
        f"**{_cell(told)}**" if level == "bad" else _cell(told),
        f"{_clean(results)} {headline(results)}",
        _table(
            ("threat model", "attack", "accuracy", "95 % interval", "worst draw", "undefended", "batches flagged", "counts"),
            [_attack_row(threat, attack) for threat, group in whole.items() for attack in group],
        ),
        _table(
            ("threat model", "attack", "attacked slots", "others", "others without it", "batches flagged"),
            [_slots_row(threat, attack) for threat, group in shared.items() for attack in group],
        ),
        "## Worst case and baselines",
        _table(
            (
                "subject",
                "clean",
                "refused, clean",
                "worst case per batch",
                "95 % interval",
                "per image",
                "refused then",
                "right of the accepted",
            ),
            [_subject_row(results, name) for name in subjects(results)],
            words=1,
        ),
        "Per batch the attack that leaves the least counts; a refused image counts as not fooled. "
        f"{run['images']} images in batches of {run['batch_size']}, {plural(run['draws'], 'draw')} of the noise; "
        "Wilson intervals over images.",
        "".join(f"- Not run: {_cell(part['name'])} ({_cell(part['why'])})\n" for part in results["not_run"]).rstrip(),
        f"Made with {_code(run['command']) if run['command'] else 'a call from Python'}; {commit}, seed {run['seed']}, "
        f"twoprong {made['twoprong']}, torch {made['torch']}, Python {made['python']}, "
        f"on {_cell(made['platform'])}, {_cell(made['device'])}, {plural(made['threads'], 'thread')}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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


def verdict(results: dict[str, Any]) -> tuple[str, str]:
    """What the sanity checks say of all the numbers: `bad`, `warn` or `good`, and a sentence."""
    count = Counter(check["status"] for check in results["sanity"])
    failed = [check["name"] for check in results["sanity"] if check["status"] == "failed"]
    if failed or not results["reliable"]:
        which = f"{plural(len(failed), 'sanity check')} failed ({'; '.join(failed)})" if failed else "the run is marked so"
        return "bad", f"UNRELIABLE: {which}. Do not quote these numbers."
    if not count["passed"] + count["not converged"]:
        return "warn", "No sanity check was run: nothing vouches for these numbers."
    if count["not converged"]:
        return "warn", f"Sanity checks passed, {count['not converged']} not converged: read accuracies as upper bounds."
    return "good", f"All {plural(count['passed'], 'sanity check')} that could be run passed."


def headline(results: dict[str, Any]) -> str:
    """The sentence a manager reads: the worst case, told with what the attacker knows and may do."""
    run, worst = results["run"], results["worst_case"].get("defense")
    if not worst:
        return "No attack with the whole budget was run, so nothing can be said of what the defence withstands."
    size = budget(run["eps"], run["norm"])
    change = (
        f"every pixel by at most {size}"
        if run["norm"] == "linf"
        else f"every image by at most {size} in {NORMS.get(run['norm'], run['norm'])}"
    )
    left = f"leaves {percent(worst['per_batch'])} right ({between(worst['per_batch_interval'])})"
    mine = [attack for attack in results["attacks"] if attack["in_worst_case"] and attack["target"] == "defense"]
    threats = {attack["threat_model"] for attack in mine}
    if "adaptive" in threats:
        return f"An attacker who knows the whole defence and may change {change} {left}."
    known = "of them only the paper's know the defence" if "paper" in threats else "none of them knows the defence"
    return (
        f"The worst of the attacks that were run, changing {change}, {left}; {known}, and one made for it may get further."
    )


def headline_alarms(results: dict[str, Any]) -> dict[str, Any]:
    """How many clean batches of the headline size are flagged: over random partitions, or else in the one of `clean`."""
    size = results["run"]["batch_size"]
    for row in results["detector"].get("false_alarms", []):
        if row["size"] == size:
            return {"rate": row["rate"], "interval": row["interval"]}
    clean = results["clean"]["subjects"].get("defense", {})
    return {"rate": clean.get("flagged"), "interval": clean.get("flagged_interval")}


def by_threat(attacks: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Attacks under their threat model, the weakest first."""
    groups: dict[str, list[dict[str, Any]]] = {threat: [] for threat in THREATS}
    for attack in attacks:
        groups.setdefault(attack["threat_model"], []).append(attack)
    return {threat: group for threat, group in groups.items() if group}


def subjects(results: dict[str, Any]) -> list[str]:
    """Every subject of the run, the known ones first and in the usual order."""
    there = [*results["clean"]["subjects"], *results["worst_case"]]
    return [name for name in dict.fromkeys([*SUBJECTS, *there]) if name in there]


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _clean(results: dict[str, Any]) -> str:
    """Clean accuracy with and without the defence, and its false alarms."""
    clean, alarms = results["clean"]["subjects"], headline_alarms(results)
    said = f"Of clean images the defence gets {percent(clean['defense']['accuracy'])} right"
    said += f" (undefended {percent(clean['bare']['accuracy'])})" if "bare" in clean else ""
    asked = results["detector"].get("false_alarm_rate")
    said += (
        ""
        if alarms["rate"] is None
        else f" and flags {percent(alarms['rate'])} of clean batches of {results['run']['batch_size']}"
    )
    return said + ("" if alarms["rate"] is None or asked is None else f" ({percent(asked)} asked for)") + "."


def _attack_row(threat: str, attack: dict[str, Any]) -> list[str]:
    mine, bare = attack["subjects"].get("defense", {}), attack["subjects"].get("bare", {})
    shares = [
        percent(mine.get("accuracy")),
        between(mine.get("interval")),
        percent(mine.get("worst_draw")),
        percent(bare.get("accuracy")),
    ]
    return [threat, attack["name"], *shares, percent(mine.get("flagged")), "yes" if attack["in_worst_case"] else "no"]


def _slots_row(threat: str, attack: dict[str, Any]) -> list[str]:
    mine = attack["slots"].get("defense", {})
    shares = [percent(mine.get(key)) for key in ("attacked", "others", "others_clean")]
    return [threat, attack["name"], *shares, percent(attack["subjects"].get("defense", {}).get("flagged"))]


def _subject_row(results: dict[str, Any], name: str) -> list[str]:
    clean, worst = results["clean"]["subjects"].get(name, {}), results["worst_case"].get(name, {})
    before = [SUBJECTS.get(name, name), percent(clean.get("accuracy")), percent(clean.get("rejected"))]
    shares = [percent(worst.get("per_batch")), between(worst.get("per_batch_interval")), percent(worst.get("per_sample"))]
    return [*before, *shares, percent(worst.get("rejected")), percent(worst.get("accuracy_accepted"))]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 2) -> str:
    """A table whose first `words` columns are text and the rest numbers; nothing where there are no rows."""
    if not rows:
        return ""
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Text that can neither end a cell nor become a tag, a link, an emphasis or a line of its own."""
    return re.sub(r"[\\|`*<>&~\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split("\n")))


def _code(text: str) -> str:
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence} {' '.join(text.split())} {fence}" if len(fence) > 1 else f"`{' '.join(text.split())}`"

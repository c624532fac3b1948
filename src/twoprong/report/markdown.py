"""results.md: an evaluation's results as a table for a paper or a pull request."""

import re
from collections.abc import Sequence

from twoprong.report.words import (
    NORMS,
    SUBJECTS,
    between,
    budget,
    by_threat,
    headline,
    headline_alarms,
    hidden,
    intervals,
    percent,
    plural,
    subjects,
    verdict,
)
from twoprong.results import EvaluationResults
from twoprong.results.evaluation import AttackEntry


def to_markdown(results: EvaluationResults) -> str:
    """The results as GitHub Markdown: verdict, headline, attacks, worst case, baselines, and how they were made."""
    run, made = results.run, results.made_with
    level, told = verdict(results)
    budgeted = f"ε = {budget(run.eps, run.norm)} ({NORMS.get(run.norm, run.norm)})"
    title = f"{run.protocol} protocol, {_cell(run.data or results.defense.data or 'unnamed data')}, {budgeted}"
    whole = by_threat(attack for attack in results.attacks if attack.slots is None)
    shared = by_threat(attack for attack in results.attacks if attack.slots is not None)
    commit = f"commit {made.commit[:12]}" if made.commit else "commit unknown"
    commit += f" (parts resumed from {_cell(made.mixed)})" if made.mixed else ""
    parts = [
        f"# {'UNRELIABLE: ' if level == 'bad' else ''}{title}",
        f"**{_cell(told)}**" if level in ("bad", "broken") else _cell(told),
        f"{_clean(results)} {headline(results)}",
        _table(
            (
                "threat model",
                "attack",
                "accuracy",
                "95 % interval",
                "worst draw",
                "undefended",
                "batches flagged",
                "statistic",
                "d₁ ≥",
                "counts",
            ),
            [_attack_row(threat, attack) for threat, group in whole.items() for attack in group],
        ),
        f"The statistic is the mean over batches, the threshold {results.defense.threshold:.4f}. d₁ is how far attacked "
        "images are from clean ones, 2 at most; what the undefended classifier loses is a lower bound (docs/detector.md). "
        f"{_cell(hidden(results))}".rstrip(),
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
        f"{run.images} images in {plural(len(results.batches), 'batch', 'batches')} of {run.batch_size}, "
        f"{plural(run.draws, 'draw')} of the noise. {intervals(results)}",
        f"Evaluated on {_cell(run.data or 'unnamed images')}: {plural(results.clean.images, 'clean image')} in "
        f"{plural(results.clean.batches, 'batch', 'batches')}, {run.images} of them attacked. "
        f"The defence was fitted on {_cell(results.defense.data or 'unnamed data')}.",
        "".join(f"- Not run: {_cell(part.name)} ({_cell(part.why)})\n" for part in results.not_run).rstrip(),
        f"Made with {_code(run.command) if run.command else 'a call from Python'}; {commit}, seed {run.seed}, "
        f"twoprong {made.twoprong}, torch {made.torch}, Python {made.python}, "
        f"on {_cell(made.platform)}, {_cell(made.device)}, {plural(made.threads, 'thread')}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _clean(results: EvaluationResults) -> str:
    """Clean accuracy with and without the defence, and its false alarms."""
    clean, alarms = results.clean.subjects, headline_alarms(results)
    said = f"Of clean images the defence gets {percent(clean['defense'].accuracy)} right"
    said += f" (undefended {percent(clean['bare'].accuracy)})" if "bare" in clean else ""
    asked = results.asked
    said += "" if alarms.rate is None else f" and flags {percent(alarms.rate)} of clean batches of {results.run.batch_size}"
    return said + ("" if alarms.rate is None or asked is None else f" ({percent(asked)} asked for)") + "."


def _attack_row(threat: str, attack: AttackEntry) -> list[str]:
    mine, bare = attack.subjects["defense"], attack.subjects.get("bare")
    shares = [
        percent(mine.accuracy),
        between(mine.quoted),
        percent(mine.worst_draw),
        percent(bare.accuracy if bare else None),
    ]
    far = "–" if attack.divergence is None else f"{attack.divergence.at_least:.2f}"
    value = "–" if attack.statistic is None else f"{attack.statistic:.4f}"
    return [threat, attack.name, *shares, percent(mine.flagged), value, far, "yes" if attack.in_worst_case else "no"]


def _slots_row(threat: str, attack: AttackEntry) -> list[str]:
    mine = (attack.slots or {})["defense"]
    shares = [percent(share) for share in (mine.attacked, mine.others, mine.others_clean)]
    return [threat, attack.name, *shares, percent(attack.subjects["defense"].flagged)]


def _subject_row(results: EvaluationResults, name: str) -> list[str]:
    clean, worst = results.clean.subjects[name], results.worst_case.get(name)
    before = [SUBJECTS.get(name, name), percent(clean.accuracy), percent(clean.rejected)]
    if worst is None:
        return [*before, percent(None), between(None), *[percent(None)] * 3]
    shares = [percent(worst.per_batch), between(worst.per_batch_quoted), percent(worst.per_sample)]
    return [*before, *shares, percent(worst.rejected), percent(worst.accuracy_accepted)]


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

"""`twoprong evaluate`."""

import re
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table
from torch import nn

from twoprong.bundle import read_manifest
from twoprong.card import protected
from twoprong.cli.arguments.evaluate import EvaluateArguments
from twoprong.cli.attack import number
from twoprong.cli.classifier import Normalisation, Training, get_classifier, get_defense, get_trained
from twoprong.cli.device import choose_and_tune, resolve
from twoprong.cli.output import check_utf8, command_line, err, out, print_json, progress_bars, shown
from twoprong.cli.source import class_names, get_data, say_fewer
from twoprong.config import FitConfig
from twoprong.data.tensors import ImageData
from twoprong.errors import InputError
from twoprong.evaluation.options import EvaluateOptions
from twoprong.evaluation.protocols import PROTOCOLS
from twoprong.evaluation.run import check_folder, evaluate_part
from twoprong.evaluation.run import evaluate as run_evaluation
from twoprong.models.precision import Precision as ComputePrecision
from twoprong.presets import PRESETS
from twoprong.progress import Progress
from twoprong.report.words import intervals, plural
from twoprong.results import EvaluationResults
from twoprong.results.scores import Score


def evaluate(given: EvaluateArguments) -> None:
    """Load bundles, images and classifiers, evaluate, show what came of it."""
    if given.protocol not in PROTOCOLS:
        raise InputError(f"--protocol {given.protocol}: expected one of {', '.join(PROTOCOLS)}")
    for option, file, partner, name in (
        ("--weights", given.weights, "--classifier", given.classifier),
        ("--surrogate-weights", given.surrogate_weights, "--surrogate", given.surrogate),
    ):
        if file is not None and name is None:
            raise InputError(f"{option} {file}: expected {partner} beside it, got none")
    part = None if given.part is None else _part(given.part)
    check_utf8("--out", given.directory)
    check_folder(given.directory, given.resume)
    budget = None if given.eps is None else number("--eps", given.eps)
    where = choose_and_tune(given.device)
    inner = resolve(given.precision, where)
    classes = class_names(given.classes)
    source = get_data(given.data, given.bundle, given.data_root, given.image_size, classes, given.split).to(where)
    say_fewer(given.images, source)
    classifier = None
    if given.classifier is not None:  # the bundle knows the weights that it was fitted around
        normalisation = Normalisation(given.mean, given.std)
        classifier = get_trained(given.classifier, given.weights, source, ":" in given.classifier, normalisation)
    allow = given.allow or ()
    defense = get_defense(given.bundle, classifier, source, allow)
    second = None
    if given.against is not None:
        second = get_defense(given.against, classifier if _needs(given.against) else None, source, allow)
    with progress_bars() as progress:
        options = EvaluateOptions(
            train=source.train if len(source.train) else None,
            against=second,
            surrogate=_surrogate(given, source, inner, progress),
            eps=budget,
            norm=given.norm,
            batch_size=given.batch_size,
            count=given.images,
            seed=given.seed,
            resume=given.resume,
            progress=progress,
            precision=inner,
            source=source.name,
            command=command_line(),
        )
        if part is not None:
            count = evaluate_part(defense, source.test, None, given.protocol, given.directory, part, options=options)
            attacks = plural(count, "attack on a batch is", "attacks on batches are")
            err.print(f"{attacks} done; when all parts are done, repeat it with --resume and without --part")
            return
        evaluation = run_evaluation(defense, source.test, protocol=given.protocol, out=given.directory, options=options)
    if given.as_json:
        print_json(evaluation.results.as_dict())
    else:
        _show(evaluation.results, given.directory)
    if not evaluation.reliable:
        failed = [check.name for check in evaluation.results.sanity if check.status == "failed"]
        err.print(f"[bold red]UNRELIABLE[/bold red]: failed sanity checks: {', '.join(failed)}", highlight=False)
        if given.strict:
            raise typer.Exit(1)


def _part(text: str) -> tuple[int, int]:
    """K/N as two numbers."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--part {text}: expected K/N with K from 1 to N, such as 2/5")
    return int(found[1]), int(found[2])


def _needs(bundle: Path) -> bool:
    """Whether a bundle comes without its classifier."""
    return protected(read_manifest(bundle))["spec"] is None


def _surrogate(
    given: EvaluateArguments, source: ImageData, precision: ComputePrecision, progress: Progress
) -> nn.Module | None:
    """Another classifier; named without weights it is trained here, with a seed that is not the bundle's, and kept."""
    name, weights = given.surrogate, given.surrogate_weights
    if name is None:
        return None
    if weights is not None or ":" in name:
        return get_trained(name, weights, source, given.weights_inside)
    config = PRESETS.get(given.data or "", FitConfig()).model_copy(update={"seed": given.seed + 1_000_003})
    return get_classifier(name, None, source, Training(config, given.directory / "surrogate", True, progress, precision))


def _show(results: EvaluationResults, directory: Path) -> None:
    run = results.run
    batches = plural(len(results.batches), "batch", "batches")
    title = f"{run.protocol}: {run.images} images in {batches} of {run.batch_size}, {run.norm} {run.eps:.4g}"
    table = Table(title=title)
    for column in ("threat model", "attack", "defended", "95 % interval", "bare", "flagged"):
        table.add_column(column, justify="left" if column in ("threat model", "attack") else "right")
    table.add_row("none", "clean images", *_cells(results.clean.subjects))
    for attack in results.attacks:
        table.add_row(attack.threat_model, escape(attack.name), *_cells(attack.subjects))
    table.add_section()
    worst = results.worst_case.get("defense")
    if worst is None:
        table.add_row("worst case", "not known: no attack that counts could run", *[""] * 4)
    else:
        low, high = worst.per_batch_quoted
        table.add_row("worst case", "per batch", f"[bold]{worst.per_batch:.1%}[/bold]", f"{low:.1%} - {high:.1%}", "", "")
    out.print(table)
    out.print(intervals(results), highlight=False)
    for check in results.sanity:
        if check.status in ("failed", "not converged"):
            out.print(f"{check.status}: {check.name}: {escape(check.detail)}", highlight=False)
    out.print(f"Look at {shown(directory / 'report.html')}", highlight=False)


def _cells(subjects: dict[str, Score]) -> tuple[str, str, str, str]:
    mine = subjects["defense"]
    low, high = mine.quoted
    flagged = "–" if mine.flagged is None else f"{mine.flagged:.0%}"
    return f"{mine.accuracy:.1%}", f"{low:.1%} - {high:.1%}", f"{subjects['bare'].accuracy:.1%}", flagged

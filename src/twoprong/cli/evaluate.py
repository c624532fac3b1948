"""`twoprong evaluate`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from torch import nn

from twoprong.bundle import read_manifest
from twoprong.card import protected
from twoprong.cli.attack import number
from twoprong.cli.classifier import get_classifier, get_defense, get_trained
from twoprong.cli.device import Device, Precision, choose, resolve
from twoprong.cli.output import err, out, print_json, progress_bars
from twoprong.cli.source import KINDS, get_data, say_fewer
from twoprong.config import PRESETS, FitConfig
from twoprong.data.tensors import ImageData
from twoprong.errors import InputError
from twoprong.evaluation.protocols import PROTOCOLS
from twoprong.evaluation.run import check_folder
from twoprong.evaluation.run import evaluate as run_evaluation
from twoprong.models.precision import Precision as ComputePrecision
from twoprong.progress import Progress


def evaluate(
    bundle: Annotated[Path, typer.Argument(help="The bundle to evaluate: its directory, or its name.")],
    data: Annotated[str | None, typer.Option(help=f"{KINDS}.", show_default="a packaged bundle's own")] = None,
    protocol: Annotated[
        str, typer.Option(help=f"{', '.join(PROTOCOLS)}: minutes, the paper's attacks, or everything we know.")
    ] = "quick",
    directory: Annotated[Path, typer.Option("--out", help="Where results.json, report.html and results.md go.")] = Path(
        "evaluation"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    images: Annotated[
        int | None, typer.Option(min=1, help="How many test images to attack.", show_default="200 for quick, else 1000")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Images per batch.")] = 100,
    eps: Annotated[
        str | None, typer.Option(help="The budget, such as 8/255.", show_default="what the bundle was fitted for")
    ] = None,
    norm: Annotated[str | None, typer.Option(help="linf or l2.", show_default="the bundle's")] = None,
    against: Annotated[Path | None, typer.Option(help="A second bundle, evaluated beside the first.")] = None,
    classifier: Annotated[
        str | None, typer.Option(help="The classifier, where it is not in the bundle: MODULE:FACTORY.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The classifier's weights, a .safetensors file.")] = None,
    surrogate: Annotated[
        str | None, typer.Option(help="Whose attacks are transferred: a NAME (trained here), or MODULE:FACTORY.")
    ] = None,
    surrogate_weights: Annotated[Path | None, typer.Option(help="The surrogate's weights, a .safetensors file.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where cifar10's files are.")] = None,
    image_size: Annotated[int | None, typer.Option(min=4, help="Resize a directory's images to this square.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when a sanity check failed.")] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    precision: Annotated[Precision, typer.Option(help="Of the attacks' networks; auto is bf16 on a GPU.")] = Precision.fp32,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")] = False,
) -> None:
    """Attack a bundle by a protocol and say honestly what it withstands. docs/evaluate.md explains every number."""
    if protocol not in PROTOCOLS:
        raise InputError(f"--protocol {protocol}: expected one of {', '.join(PROTOCOLS)}")
    for option, file, partner, name in (
        ("--weights", weights, "--classifier", classifier),
        ("--surrogate-weights", surrogate_weights, "--surrogate", surrogate),
    ):
        if file is not None and name is None:
            raise InputError(f"{option} {file}: expected {partner} beside it, got none")
    check_folder(directory, resume)
    budget = None if eps is None else number("--eps", eps)
    where = choose(device)
    inner = resolve(precision, where)
    source = get_data(data, bundle, data_root, image_size).to(where)
    say_fewer(images, source)
    given = get_trained(classifier, weights, source) if classifier is not None else None
    defense = get_defense(bundle, given, source)
    second = get_defense(against, given if _needs(against) else None, source) if against is not None else None
    with progress_bars() as progress:
        evaluation = run_evaluation(
            defense,
            source.test,
            protocol=protocol,
            out=directory,
            train=source.train if len(source.train) else None,
            against=second,
            surrogate=_surrogate(surrogate, surrogate_weights, source, data, directory, seed, inner, progress),
            eps=budget,
            norm=norm,
            batch_size=batch_size,
            count=images,
            seed=seed,
            resume=resume,
            progress=progress,
            precision=inner,
            source=source.name,
            command=shlex.join(["twoprong", *sys.argv[1:]]),
        )
    if as_json:
        print_json(evaluation.results)
    else:
        _show(evaluation.results, directory)
    if not evaluation.reliable:
        failed = [check["name"] for check in evaluation.results["sanity"] if check["status"] == "failed"]
        err.print(f"[bold red]UNRELIABLE[/bold red]: failed sanity checks: {', '.join(failed)}", highlight=False)
        if strict:
            raise typer.Exit(1)


def _needs(bundle: Path | None) -> bool:
    """Whether a bundle comes without its classifier."""
    return bundle is not None and protected(read_manifest(bundle))["spec"] is None


def _surrogate(
    name: str | None,
    weights: Path | None,
    source: ImageData,
    data: str | None,
    directory: Path,
    seed: int,
    precision: ComputePrecision,
    progress: Progress,
) -> nn.Module | None:
    """Another classifier; named without weights it is trained here, with a seed that is not the bundle's, and kept."""
    if name is None:
        return None
    if weights is not None or ":" in name:
        return get_trained(name, weights, source)
    config = PRESETS.get(data or "", FitConfig()).model_copy(update={"seed": seed + 1_000_003})
    return get_classifier(name, None, source, config, directory / "surrogate", True, progress, precision)


def _show(results: dict[str, Any], directory: Path) -> None:
    run = results["run"]
    table = Table(
        title=f"{run['protocol']}: {run['images']} images in batches of {run['batch_size']}, {run['norm']} {run['eps']:.4g}"
    )
    for column in ("threat model", "attack", "defended", "95 % interval", "bare", "flagged"):
        table.add_column(column, justify="left" if column in ("threat model", "attack") else "right")
    clean = results["clean"]["subjects"]
    table.add_row("none", "clean images", *_cells(clean))
    for attack in results["attacks"]:
        table.add_row(attack["threat_model"], escape(attack["name"]), *_cells(attack["subjects"]))
    worst = results["worst_case"]["defense"]
    low, high = worst["per_batch_interval"]
    table.add_section()
    table.add_row("worst case", "per batch", f"[bold]{worst['per_batch']:.1%}[/bold]", f"{low:.1%} - {high:.1%}", "", "")
    out.print(table)
    for check in results["sanity"]:
        if check["status"] in ("failed", "not converged"):
            out.print(f"{check['status']}: {check['name']}: {escape(check['detail'])}", highlight=False)
    out.print(f"Look at {directory / 'report.html'}", highlight=False)


def _cells(subjects: dict[str, Any]) -> tuple[str, str, str, str]:
    mine = subjects["defense"]
    low, high = mine["interval"]
    return (
        f"{mine['accuracy']:.1%}",
        f"{low:.1%} - {high:.1%}",
        f"{subjects['bare']['accuracy']:.1%}",
        f"{mine['flagged']:.0%}",
    )

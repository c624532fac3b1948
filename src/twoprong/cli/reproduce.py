"""`twoprong reproduce`."""

import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from torch import nn

from twoprong.cli.classifier import get_trained
from twoprong.cli.device import Device, Precision, choose, resolve
from twoprong.cli.output import out, print_json, progress_bars
from twoprong.data.sources import load_data
from twoprong.data.tensors import ImageData
from twoprong.errors import InputError
from twoprong.report.reproduction import row_texts
from twoprong.reproduce.run import reproduce as run
from twoprong.reproduce.tables import NAMES, load_experiment


class ScaleName(StrEnum):
    smoke = "smoke"
    full = "full"


def reproduce(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}.")],
    scale: Annotated[
        ScaleName, typer.Option(help="smoke: digits, seconds, to see that it runs; full: the paper's data and settings.")
    ] = ScaleName.smoke,
    directory: Annotated[
        Path | None,
        typer.Option("--out", help="For results, bundles and finished pieces.", show_default="reproduce-NAME-SCALE"),
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where cifar10's files are, for --scale full.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="For imagenet at full scale: a directory with one sub-directory per class.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=4, help="Resize that directory's images to this square.")] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="A directory like --data of images that the classifier was not trained on.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only the row of this name, or rows whose names hold it; may be repeated. Others are quoted."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help="Run only the column of this name, or those whose names hold it; may be repeated."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of every fit, such as denoiser.noise=clamped; may be repeated."),
    ] = None,
    images: Annotated[int | None, typer.Option(min=2, help="How many test images are attacked.")] = None,
    classifier: Annotated[str | None, typer.Option(help="Protect this classifier instead of the paper's.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Its trained weights, a .safetensors file; else it is trained.")
    ] = None,
    surrogate_weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Trained weights of a classifier that attacks are transferred from, else it is trained; may be repeated.",
        ),
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="For finished pieces, shared by several names.", show_default="OUT/work")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue a run that was stopped.")] = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    precision: Annotated[Precision, typer.Option(help="Of the networks; auto is bf16 on a GPU.")] = Precision.fp32,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")] = False,
) -> None:
    """Measure a table of the paper here and show it beside the paper's numbers."""
    where = choose(device)
    source = _source(name, scale, data, data_root, image_size, weights).to(where)
    unseen = load_data(str(held_out), None, image_size).everything().to(where) if held_out is not None else None
    trained = partial(get_trained, weights=weights, data=source) if weights is not None else None
    folder = directory or Path(f"reproduce-{name}-{scale}")
    with progress_bars() as progress:
        results = run(
            name,
            scale.value,
            source,
            folder,
            work=work,
            resume=resume,
            only=only or (),
            columns=columns or (),
            assignments=assignments or (),
            images=images,
            classifier=classifier,
            trained=trained,
            surrogates=_surrogates(surrogate_weights or (), source),
            held_out=unseen,
            seed=seed,
            precision=resolve(precision, where),
            command=shlex.join(["twoprong", *sys.argv[1:]]),
            progress=progress,
        )
    if as_json:
        print_json(results.as_dict())
        return
    warning = f"\n{results.warning}" if results.warning else ""
    table = Table(title=f"{results.title}\n{results.source}{warning}")
    for column in ("row", "column", "paper", "ours (95 %)"):
        table.add_column(column, justify="left" if column in ("row", "column") else "right")
    for text in row_texts(results):
        table.add_row(*map(escape, text))
    out.print(table)
    if results.run.classifier:
        out.print(f"Every protected classifier was a {results.run.classifier}, whatever a row is called.", highlight=False)
    out.print(f"{escape(results.note)}\nWritten to {escape(str(folder))}.", highlight=False)


def _surrogates(assignments: Sequence[str], data: ImageData) -> dict[str, nn.Module]:
    """The classifiers given as NAME=FILE."""
    made = {}
    for assignment in assignments:
        name, equals, file = assignment.partition("=")
        if not (name and equals and file):
            raise InputError(f"--surrogate-weights {assignment}: expected NAME=FILE.safetensors")
        made[name] = get_trained(name, Path(file), data)
    return made


def _source(
    name: str, scale: ScaleName, data: Path | None, data_root: Path | None, image_size: int | None, weights: Path | None
) -> ImageData:
    """The images that the experiment needs at this scale. Raises InputError for what is missing, or of no use here."""
    wanted = load_experiment(name).scale(scale).data
    if wanted != "folder":
        if data is not None:
            raise InputError(f"--data: expected none, {name} at {scale} scale runs on {wanted}, got {data}; leave it out")
        return load_data(wanted, data_root, image_size)
    if data is None or weights is None:
        raise InputError(
            f"{name} at full scale: expected --data FOLDER (one sub-directory per class) and --weights FILE.safetensors "
            f"(of a classifier that takes images in [0, 1]), got {'no --data' if data is None else 'no --weights'}; "
            "--scale smoke needs neither"
        )
    return load_data(str(data), data_root, image_size)

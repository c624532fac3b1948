"""The arguments of `twoprong reproduce`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from twoprong.cli.arguments.shared import (
    DataRoot,
    Device,
    HeldOut,
    ImageSize,
    InPrecision,
    OnDevice,
    Precision,
    ResultsAsJson,
    Resume,
    Seed,
    WeightsOrTraining,
)
from twoprong.names import PRESETS, TABLES


class ScaleName(StrEnum):
    smoke = "smoke"
    full = "full"


@dataclass(frozen=True, kw_only=True)
class ReproduceArguments:
    """Measure a table of the paper here and show it beside the paper's numbers."""

    name: Annotated[str, typer.Argument(help=f"One of {', '.join(TABLES)}.")]
    scale: Annotated[
        ScaleName, typer.Option(help="smoke: digits, seconds, to see that it runs; full: the paper's data and attacks.")
    ] = ScaleName.smoke
    directory: Annotated[
        Path | None,
        typer.Option("--out", help="For results, bundles and finished pieces.", show_default="reproduce-NAME-SCALE"),
    ] = None
    data_root: DataRoot = None
    data: Annotated[
        Path | None, typer.Option(help="For imagenet at full scale: a directory with one sub-directory per class.")
    ] = None
    image_size: ImageSize = None
    held_out: HeldOut = None
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only the row of this name, or rows whose names hold it; may be repeated. Others are quoted."),
    ] = None
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help="Run only the column of this name, or those whose names hold it; may be repeated."),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"The settings of every fit whose row has none of its own: {', '.join(PRESETS)}.",
            show_default="full: paper, or paper-imagenet",
        ),
    ] = None
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of every fit, such as denoiser.noise=clamped; may be repeated."),
    ] = None
    images: Annotated[int | None, typer.Option(min=2, help="How many test images are attacked.")] = None
    classifier: Annotated[str | None, typer.Option(help="Protect this classifier instead of the paper's.")] = None
    weights: WeightsOrTraining = None
    surrogate_weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Trained weights of a classifier that attacks are transferred from, else it is trained; may be repeated.",
        ),
    ] = None
    work: Annotated[
        Path | None, typer.Option(help="For finished pieces, shared by several names.", show_default="OUT/work")
    ] = None
    resume: Resume = False
    seed: Seed = 0
    seeds: Annotated[
        int, typer.Option(min=1, help="Run so many seeds, from --seed on; numbers are their mean ± standard deviation.")
    ] = 1
    device: OnDevice = Device.auto
    precision: InPrecision = Precision.fp32
    as_json: ResultsAsJson = False

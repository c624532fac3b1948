"""The arguments of `twoprong fit`."""

from dataclasses import dataclass
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
    Resume,
    SummaryAsJson,
    WeightsOrTraining,
)
from twoprong.names import CLASSIFIERS


@dataclass(frozen=True, kw_only=True)
class FitArguments:
    """Put the defence around a classifier and write it as a bundle.

    Without weights a named classifier is trained first, on images that reference and calibration are not taken from. For a
    classifier that was trained elsewhere on --data, give --held-out images, or clean batches may look unlike the reference.
    """

    data: Annotated[str, typer.Option(help="digits, cifar10, or a directory with one sub-directory per class.")]
    bundle: Annotated[Path, typer.Option("--out", help="The bundle to write.")]
    classifier: Annotated[str, typer.Option(help=f"{', '.join(CLASSIFIERS)}, wrn-28-10, or MODULE:FACTORY.")]
    weights: WeightsOrTraining = None
    data_root: DataRoot = None
    held_out: HeldOut = None
    image_size: ImageSize = None
    strict: Annotated[bool, typer.Option(help="Refuse a directory with an unreadable image, instead of skipping it.")] = (
        False
    )
    config: Annotated[Path | None, typer.Option(help="Settings, a TOML file.")] = None
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, such as denoiser.epochs=30; may be repeated.")
    ] = None
    work: Annotated[
        Path | None, typer.Option(help="Where crafted examples and checkpoints go.", show_default="OUT.work")
    ] = None
    resume: Resume = False
    overwrite: Annotated[bool, typer.Option(help="Replace a bundle that is already there.")] = False
    device: OnDevice = Device.auto
    precision: InPrecision = Precision.auto
    as_json: SummaryAsJson = False

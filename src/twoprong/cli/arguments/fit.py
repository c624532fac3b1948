"""The arguments of `twoprong fit`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from twoprong.cli.arguments.shared import (
    OTHERS,
    Classes,
    DataRoot,
    Device,
    ImageSize,
    InPrecision,
    Mean,
    OnDevice,
    Precision,
    Preset,
    Resume,
    Std,
    SummaryAsJson,
    WeightsInside,
    WeightsOrTraining,
)
from twoprong.names import CLASSIFIERS


class Mode(StrEnum):
    paper = "paper"
    hardened = "hardened"


@dataclass(frozen=True, kw_only=True)
class FitArguments:
    """Put the defence around a classifier and write it as a bundle.

    Without weights one of our classifiers is trained first, on images that reference and calibration are not taken from. For
    a classifier that was trained elsewhere, --held-out says which images it has not learned, and --classes what its outputs
    mean. A directory may have sub-directories train/, val/ and test/, each with one sub-directory per class.
    With --mode hardened a robust network is trained beside the classifier, and --balance says how much it is trusted.
    """

    data: Annotated[str, typer.Option(help="digits, cifar10, or a directory with one sub-directory per class.")]
    bundle: Annotated[Path, typer.Option("--out", help="The bundle to write.")]
    classifier: Annotated[str, typer.Option(help=f"{', '.join(CLASSIFIERS)}, wrn-28-10; or {OTHERS}.")]
    weights: WeightsOrTraining = None
    weights_inside: WeightsInside = False
    classes: Classes = None
    mean: Mean = None
    std: Std = None
    data_root: DataRoot = None
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY|val|none",
            help="Images that the classifier was not trained on, for reference and calibration: a directory like --data; "
            "val, the sub-directory of --data; or none, where it has learned no image of --data. A classifier that is not "
            "trained here needs the choice: if it has learned the reference, every new batch looks adversarial.",
        ),
    ] = None
    image_size: ImageSize = None
    strict: Annotated[bool, typer.Option(help="Refuse a directory with an unreadable image, instead of skipping it.")] = (
        False
    )
    preset: Preset = None
    mode: Annotated[
        Mode | None,
        typer.Option(
            help="paper: the published method, which does not hold against an attacker who knows it; hardened: a robust "
            "network beside the classifier.",
            show_default="paper, or settings",
        ),
    ] = None
    balance: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Of the hardened mode: 0 is all accuracy, 1 all robustness.",
            show_default="the settings', 0.6",
        ),
    ] = None
    robust_weights: Annotated[
        Path | None,
        typer.Option(help="A robust network trained before, as tools/train_robust.py writes it; else one is trained."),
    ] = None
    config: Annotated[Path | None, typer.Option(help="Settings, a TOML file.")] = None
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, such as denoiser.epochs=30; may be repeated.")
    ] = None
    work: Annotated[
        Path | None, typer.Option(help="Where crafted examples and checkpoints go.", show_default="OUT.work")
    ] = None
    resume: Resume = False
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Go on with a classifier near chance, or held-out or test images that are in another part, too."
        ),
    ] = False
    overwrite: Annotated[bool, typer.Option(help="Replace a bundle that is already there.")] = False
    device: OnDevice = Device.auto
    precision: InPrecision = Precision.auto
    as_json: SummaryAsJson = False

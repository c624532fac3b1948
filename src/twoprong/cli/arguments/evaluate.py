"""The arguments of `twoprong evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from twoprong.cli.arguments.shared import (
    OTHERS,
    Allow,
    BundleData,
    Classes,
    DataRoot,
    Device,
    ImageSize,
    InPrecision,
    Mean,
    Norm,
    OfWhich,
    OnDevice,
    Precision,
    ResultsAsJson,
    Resume,
    Seed,
    Split,
    Std,
    Weights,
    WeightsInside,
)
from twoprong.names import PROTOCOLS


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments:
    """Attack a bundle by a protocol and say honestly what it withstands. docs/evaluate.md explains every number."""

    bundle: Annotated[Path, typer.Argument(help="The bundle to evaluate: its directory, or its name.")]
    data: BundleData = None
    split: OfWhich = Split.test
    classes: Classes = None
    protocol: Annotated[
        str, typer.Option(help=f"{', '.join(PROTOCOLS)}: minutes, the paper's attacks, or everything we know.")
    ] = "quick"
    directory: Annotated[Path, typer.Option("--out", help="Where results.json, report.html and results.md go.")] = Path(
        "evaluation"
    )
    resume: Resume = False
    part: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="Only part K of N of the attacks on batches, into --out. Run all parts at once, on one GPU or several "
            "machines; then the same command with --resume instead.",
        ),
    ] = None
    images: Annotated[
        int | None, typer.Option(min=1, help="How many test images to attack.", show_default="200 for quick, else 1000")
    ] = None
    batch_size: Annotated[int, typer.Option(min=2, help="Images per batch.")] = 100
    eps: Annotated[
        str | None, typer.Option(help="The budget, such as 8/255.", show_default="what the bundle was fitted for")
    ] = None
    norm: Norm = None
    against: Annotated[Path | None, typer.Option(help="A second bundle, evaluated beside the first.")] = None
    classifier: Annotated[str | None, typer.Option(help=f"The classifier, where it is not in the bundle: {OTHERS}.")] = None
    weights: Weights = None
    weights_inside: WeightsInside = False
    mean: Mean = None
    std: Std = None
    allow: Allow = None
    surrogate: Annotated[
        str | None, typer.Option(help="Whose attacks are transferred: a NAME (trained here), or MODULE:FACTORY.")
    ] = None
    surrogate_weights: Annotated[Path | None, typer.Option(help="The surrogate's weights, a .safetensors file.")] = None
    data_root: DataRoot = None
    image_size: ImageSize = None
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when a sanity check failed.")] = False
    seed: Seed = 0
    device: OnDevice = Device.auto
    precision: InPrecision = Precision.fp32
    as_json: ResultsAsJson = False

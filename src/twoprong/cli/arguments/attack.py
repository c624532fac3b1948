"""The arguments of `twoprong attack`."""

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
    Seed,
    Split,
    Std,
    SummaryAsJson,
    Weights,
    WeightsInside,
)
from twoprong.names import ATTACKS


@dataclass(frozen=True, kw_only=True)
class AttackArguments:
    """Attack a bundle, or a bare classifier, with whole batches of test images."""

    name: Annotated[str, typer.Option("--attack", help=f"One of {', '.join(ATTACKS)}.")]
    bundle: Annotated[
        Path | None, typer.Argument(help="The bundle to attack, its directory or its name; or give --classifier.")
    ] = None
    data: BundleData = None
    split: OfWhich = Split.test
    classes: Classes = None
    classifier: Annotated[str | None, typer.Option(help=f"A classifier: NAME with --weights, or {OTHERS}.")] = None
    weights: Weights = None
    weights_inside: WeightsInside = False
    mean: Mean = None
    std: Std = None
    allow: Allow = None
    bare: Annotated[bool, typer.Option("--bare", help="Attack the bundle's classifier alone.")] = False
    eps: Annotated[
        str | None, typer.Option(help="The budget, such as 8/255 or 0.5.", show_default="the bundle's, or 8/255")
    ] = None
    norm: Norm = None
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the attack, such as steps=100; may be repeated.")
    ] = None
    slots: Annotated[str | None, typer.Option(help="Attack only this share of every batch, such as 10%.")] = None
    images: Annotated[int, typer.Option(min=1, help="How many test images.")] = 200
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 100
    seed: Seed = 0
    file: Annotated[Path | None, typer.Option("--out", help="Where to write images and outcomes, an .npz file.")] = None
    pictures: Annotated[Path | None, typer.Option(help="A directory for strips of original, attacked, difference x10.")] = (
        None
    )
    data_root: DataRoot = None
    image_size: ImageSize = None
    device: OnDevice = Device.auto
    precision: InPrecision = Precision.fp32
    as_json: SummaryAsJson = False

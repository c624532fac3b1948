"""Arguments that several commands have, each declared once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from twoprong.names import SOURCES

KINDS = f"{', '.join(SOURCES)}, or a directory with one sub-directory per class"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(StrEnum):
    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


OnDevice = Annotated[Device, typer.Option(help="Where to compute.")]
InPrecision = Annotated[Precision, typer.Option(help="Of networks that train or are attacked; auto is bf16 on a GPU.")]

BundleData = Annotated[str | None, typer.Option(help=f"{KINDS}.", show_default="a packaged bundle's own")]
DataRoot = Annotated[Path | None, typer.Option(help="Where cifar10's files are.")]
ImageSize = Annotated[int | None, typer.Option(min=4, help="Resize a directory's images to this square.")]
HeldOut = Annotated[
    Path | None, typer.Option(help="A directory like --data of images that the classifier was not trained on.")
]

Weights = Annotated[Path | None, typer.Option(help="The classifier's weights, a .safetensors file.")]
WeightsOrTraining = Annotated[
    Path | None, typer.Option(help="The classifier's weights, a .safetensors file; else it is trained.")
]
Norm = Annotated[str | None, typer.Option(help="linf or l2.", show_default="the bundle's")]
Resume = Annotated[bool, typer.Option(help="Continue a run that was stopped.")]
Seed = Annotated[int, typer.Option(min=0, help="The seed of all that is drawn at random.")]
ResultsAsJson = Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")]
SummaryAsJson = Annotated[bool, typer.Option("--json", help="Print a summary for machines.")]

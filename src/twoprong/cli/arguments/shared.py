"""Arguments that several commands have, each declared once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from twoprong.names import PRESETS, SOURCES

KINDS = f"{', '.join(SOURCES)}, or a directory with one sub-directory per class"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Split(StrEnum):
    test = "test"
    val = "val"
    train = "train"
    all = "all"


class Precision(StrEnum):
    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


OnDevice = Annotated[Device, typer.Option(help="Where to compute.")]
InPrecision = Annotated[Precision, typer.Option(help="Of networks that train or are attacked; auto is bf16 on a GPU.")]

BundleData = Annotated[str | None, typer.Option(help=f"{KINDS}.", show_default="a packaged bundle's own")]
DataRoot = Annotated[Path | None, typer.Option(help="Where cifar10's files are.")]
ImageSize = Annotated[int | None, typer.Option(min=4, max=2048, help="Resize a directory's images to this square.")]
HeldOut = Annotated[
    Path | None, typer.Option(help="A directory like --data of images that the classifier was not trained on.")
]

OfWhich = Annotated[
    Split,
    typer.Option(
        help="Which images of --data: its test part (test/ of a directory, else a fifth of it), val/, the training part, or "
        "all (train/, val/ and test/), for a directory of which nothing was learned."
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        help="The classes in the order of the classifier's outputs, named as the sub-directories of --data: a,b,c or a file "
        "with one name per line.",
        show_default="the sub-directories by the alphabet; a bundle's own",
    ),
]

OTHERS = "MODULE:FACTORY, torchvision:NAME, timm:NAME or hf:DIRECTORY"
Weights = Annotated[Path | None, typer.Option(help="The classifier's weights, a .safetensors or .pt file.")]
WeightsOrTraining = Annotated[
    Path | None, typer.Option(help="The classifier's weights, a .safetensors or .pt file; else one of ours is trained.")
]
WeightsInside = Annotated[
    bool, typer.Option("--weights-inside", help="MODULE:FACTORY returns a network that is trained; no --weights needed.")
]
Mean = Annotated[
    str | None, typer.Option(help="What the classifier subtracts from each channel, such as 0.485,0.456,0.406; with --std.")
]
Std = Annotated[str | None, typer.Option(help="What it divides each channel by, such as 0.229,0.224,0.225; with --mean.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(help="A module whose factory the bundle may run to make its classifier; may be repeated."),
]
Norm = Annotated[str | None, typer.Option(help="linf or l2.", show_default="the bundle's")]
Preset = Annotated[
    str | None,
    typer.Option(
        help=f"Settings by name: {', '.join(PRESETS)}. small: a small denoiser, few epochs; paper: the paper's, to the "
        "letter; authors: their code's. A file of settings and --set win over it.",
        show_default="those that go with the data",
    ),
]
Resume = Annotated[bool, typer.Option(help="Continue a run that was stopped.")]
Seed = Annotated[int, typer.Option(min=0, help="The seed of all that is drawn at random.")]
ResultsAsJson = Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")]
SummaryAsJson = Annotated[bool, typer.Option("--json", help="Print a summary for machines.")]

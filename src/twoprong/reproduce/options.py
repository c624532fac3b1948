"""What may be chosen about a reproduction, beside the table, the scale, the images and the place of the results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from twoprong.data.tensors import Labelled
from twoprong.models.precision import Precision
from twoprong.progress import Progress, silent


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """The options of `reproduce`, each with its default."""

    work: Path | None = None  # where classifiers, fits and attacked batches are kept; None: out/work
    resume: bool = False  # continue a killed run
    only: Sequence[str] = ()  # rows of these names, or whose names hold one of these
    columns: Sequence[str] = ()  # columns likewise
    preset: str | None = None  # settings of every fit whose row has none; None: the scale's
    assignments: Sequence[str] = ()  # settings of every fit, where its row does not say otherwise
    images: int | None = None  # how many are attacked; None: as the scale says
    classifier: str | None = None  # protected instead of the paper's
    trained: Callable[[str], nn.Module] | None = None  # gives it ready-made
    surrogates: Mapping[str, nn.Module] = field(default_factory=dict)  # whose attacks are transferred, ready-made
    held_out: Labelled | None = None  # images that the given classifier was not trained on
    seed: int = 0
    precision: Precision = "fp32"  # of training and attacks; scores are fp32
    command: str | None = None  # noted in the results
    progress: Progress = silent

"""What may be chosen about an evaluation, beside the defence, the images, the protocol and the place of the results."""

from dataclasses import dataclass

from torch import nn

from twoprong.defense import Defense
from twoprong.models.precision import Precision
from twoprong.progress import Progress
from twoprong.recipe import Images


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The keywords of `evaluate`, each with its default."""

    train: Images | None = None  # clean training images, for the MagNet baseline
    against: Defense | None = None  # a second defence to compare with
    surrogate: nn.Module | None = None  # a classifier whose adversarial images are transferred
    eps: float | None = None  # the budget; None: the one the defence was fitted for
    norm: str | None = None  # its norm; None: the one the defence was fitted for
    batch_size: int = 100
    count: int | None = None  # images attacked, drawn at random; None: 200 for quick, 1,000 for paper and strong, else all
    seed: int = 0
    resume: bool = False  # continue a killed run to the same numbers
    progress: Progress | bool | None = None  # a listener; None: bars if stderr is a terminal; False: nothing
    precision: Precision = "fp32"  # of attacks; scores are fp32
    command: str | None = None  # noted in the results: what was typed,
    source: str | None = None  # and what the images are called

"""What attacks compute on when they may be a little inexact and much faster. Scores are always the exact object's."""

from typing import cast

from torch import Tensor, nn

from twoprong.attacks.base import Model
from twoprong.defense import Defense
from twoprong.models.fast import fast
from twoprong.models.precision import Precision, compiler_for


def accelerated(model: Model, precision: Precision, images: Tensor) -> Model:
    """A defence or a classifier in this precision, for images like these; other targets as they are."""
    if precision == "fp32" or not isinstance(model, nn.Module):
        return model
    compiler = compiler_for(precision, images)
    return cast(Model, model.accelerated(compiler) if isinstance(model, Defense) else fast(model, compiler))

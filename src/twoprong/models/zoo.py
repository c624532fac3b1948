"""The classifiers of this package by name. Each takes images in [0, 1], normalises inside and returns logits."""

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from twoprong.errors import InputError
from twoprong.models.cnn import SmallCNN
from twoprong.models.resnet import resnet18, resnet18_silu, resnet18_thin, resnet50
from twoprong.models.swin import swin_t
from twoprong.models.wideresnet import WideResNet


@dataclass(frozen=True)
class ModelSpec:
    """What `build` needs to make the same architecture again."""

    name: str
    classes: int
    channels: int


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "cnn": SmallCNN,
    "resnet18": resnet18,
    "resnet18-silu": resnet18_silu,
    "resnet18-thin": resnet18_thin,
    "resnet50": resnet50,
    "swin-t": swin_t,
}

_WIDE = re.compile(r"wrn-([1-9][0-9]*)-([1-9][0-9]*)(-authors)?")


def build(name: str, classes: int, channels: int) -> nn.Module:
    """A fresh classifier: a key of MODELS, "wrn-DEPTH-WIDTH", or that with "-authors". Its `spec` records how it was built.

    Weights are drawn from torch's global stream; wrap the call in `seeds.initialised` to fix them.
    Raises InputError for an unknown name, fewer than 2 classes, or channels other than 1 and 3.
    """
    if classes < 2:
        raise InputError(f"classes: expected 2 or more, got {classes}; a classifier needs something to choose between")
    if channels not in (1, 3):
        raise InputError(f"channels: expected 1 (grey) or 3 (colour), got {channels}; convert the images first")
    model = _constructor(name)(classes, channels)
    model.spec = ModelSpec(name, classes, channels)  # type: ignore[assignment]  # torch declares only tensors, modules
    return model


def _constructor(name: str) -> Callable[[int, int], nn.Module]:
    if name in MODELS:
        return MODELS[name]
    if wide := _WIDE.fullmatch(name):
        depth, width = int(wide[1]), int(wide[2])
        return lambda classes, channels: WideResNet(classes, channels, depth, width, wide[3] is not None)
    close = difflib.get_close_matches(name.lower(), [*MODELS, "wrn-28-10"], n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise InputError(f"unknown model {name!r}: {hint}known are {', '.join(MODELS)} and wrn-DEPTH-WIDTH (wrn-28-10)")

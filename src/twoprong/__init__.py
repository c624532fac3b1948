"""twoprong: a two-pronged adversarial defence (DAD) around any image classifier.

defense = tp.fit(classifier, images, labels)
decision = defense(batch)
evaluation = tp.evaluate(defense, test_images, test_labels)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twoprong import attacks, errors
    from twoprong.config import FitConfig
    from twoprong.decision import Decision, Prediction
    from twoprong.defense import Defense, load
    from twoprong.detect.detector import Detector
    from twoprong.detect.kernel import DeepKernel, Sample
    from twoprong.detect.mmd import mmd2
    from twoprong.detect.verdict import Verdict
    from twoprong.errors import TwoprongError
    from twoprong.evaluation.options import EvaluateOptions
    from twoprong.evaluation.run import Evaluation, evaluate
    from twoprong.models.dunet import DUNet
    from twoprong.predict import Predictions, stream
    from twoprong.recipe import fit

__all__ = [
    "DUNet",
    "Decision",
    "DeepKernel",
    "Defense",
    "Detector",
    "EvaluateOptions",
    "Evaluation",
    "FitConfig",
    "Prediction",
    "Predictions",
    "Sample",
    "TwoprongError",
    "Verdict",
    "attacks",
    "errors",
    "evaluate",
    "fit",
    "load",
    "mmd2",
    "stream",
]

# Where each name lives. It is imported when it is first asked for: torch takes a second, and `twoprong --help` needs none.
_HOMES = {
    "DUNet": "models.dunet",
    "Decision": "decision",
    "DeepKernel": "detect.kernel",
    "Defense": "defense",
    "Detector": "detect.detector",
    "EvaluateOptions": "evaluation.options",
    "Evaluation": "evaluation.run",
    "FitConfig": "config",
    "Prediction": "decision",
    "Predictions": "predict",
    "Sample": "detect.kernel",
    "TwoprongError": "errors",
    "Verdict": "detect.verdict",
    "evaluate": "evaluation.run",
    "fit": "recipe",
    "load": "defense",
    "mmd2": "detect.mmd",
    "stream": "predict",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES.get(name, name)}")  # a name without a home is itself a module
    globals()[name] = getattr(home, name) if name in _HOMES else home
    return globals()[name]


def __dir__() -> list[str]:
    return __all__

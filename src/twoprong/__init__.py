"""twoprong: a two-pronged adversarial defence (DAD) around any image classifier.

defense = tp.fit(classifier, images, labels)
decision = defense(batch)
evaluation = tp.evaluate(defense, test_images, test_labels)
"""

from twoprong import attacks, errors
from twoprong.config import FitConfig
from twoprong.defense import Decision, Defense, load
from twoprong.detect.detector import Detector, Verdict
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.mmd import mmd2
from twoprong.errors import TwoprongError
from twoprong.evaluation.run import Evaluation, evaluate
from twoprong.models.dunet import DUNet
from twoprong.recipe import fit

__all__ = [
    "DUNet",
    "Decision",
    "DeepKernel",
    "Defense",
    "Detector",
    "Evaluation",
    "FitConfig",
    "Sample",
    "TwoprongError",
    "Verdict",
    "attacks",
    "errors",
    "evaluate",
    "fit",
    "load",
    "mmd2",
]

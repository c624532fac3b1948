"""Calibrates a bundle's detector anew on the images that its fit used: python tools/recalibrate.py BUNDLE CIFAR_ROOT OUT

Networks, kernel and reference stay as they are. What came after the fit is added: the score of single images, and with it
batches of one and suspects. For that the fit's attack is run again on the images of the kernel, some minutes on a CPU; they
are kept in OUT-work. The split follows from the bundle's settings and seed, and is compared with the hashes that the fit
left in the bundle. `python tools/ship.py OUT CIFAR_ROOT` then puts it into the package.
"""

import sys
import time
from pathlib import Path

import twoprong as tp
from twoprong.attacks.craft import craft
from twoprong.data import ImageData, load_data
from twoprong.data.splits import split
from twoprong.detect.blame import Examples, weaker
from twoprong.errors import InputError, TwoprongError
from twoprong.recipe import sample

BEFORE = "; with the thresholds before the last calibration"


def recalibrate(defense: tp.Defense, data: ImageData, work: Path | None = None) -> tp.Defense:
    """The defence with new thresholds; raises InputError where these are not the images that it was fitted on."""
    config = defense.config
    parts = split(data.train, config.splits, config.seed)
    if parts.hashes() != defense.about.get("split_hashes"):
        raise InputError(f"{data.name}: other images than the bundle was fitted on; give the same data, in the same order")
    few = config.attack.model_copy(update={"batch_size": 100})  # at a time: a CPU has little memory
    attacked = craft(defense.classifier, parts.kernel, few, work)
    examples = Examples(
        *(sample(defense.extractor, x) for x in (parts.kernel.images, weaker(parts.kernel.images, attacked)))
    )
    alone = config.detector.model_copy(update={"min_batch_size": 1})
    defense.config = config.model_copy(update={"detector": alone, "rescue": tp.FitConfig().rescue})
    clean = sample(defense.extractor, parts.calibration.images)
    defense.detector.calibrate(clean, alone, config.seed, examples=examples)
    measured = defense.about.get("measured", {})
    defense.about["measured"] = {command: said.removesuffix(BEFORE) + BEFORE for command, said in measured.items()}
    defense.about["calibrated"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return defense


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        old, data, out = tp.load(sys.argv[1]), load_data("cifar10", Path(sys.argv[2])), sys.argv[3]
        recalibrate(old, data, Path(f"{out}-work")).save(out)
    except TwoprongError as error:
        sys.exit(f"error: {error}")

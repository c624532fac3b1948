"""What the defence costs: a clean batch of 100 against the bare classifier, a flagged one with each kind of rescue, and
both in the hardened mode.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.timing import medians
from twoprong.config import DetectorConfig, FitConfig
from twoprong.data import load_data
from twoprong.defense import Defense, load
from twoprong.detect.blame import Examples
from twoprong.detect.detector import Detector
from twoprong.detect.kernel import DeepKernel
from twoprong.models.dunet import DUNet
from twoprong.models.features import Features
from twoprong.models.layout import channels_last
from twoprong.models.zoo import build
from twoprong.recipe import paper_defense, sample
from twoprong.shipped import find

ATTACKED = (20, 50, 100)  # images of the flagged batch


def run() -> str:
    """ResNet-18, 32×32, CPU. Weights are random: the time does not depend on them. Reference of the default 500 images."""
    draw = torch.Generator().manual_seed(0)
    config = FitConfig(detector=DetectorConfig(max_batch_size=100, confidence=0.99))
    classifier = channels_last(build("resnet18", 10, 3)).eval().requires_grad_(False)
    extract = Features(classifier)
    reference = sample(extract, _smooth(config.splits.reference, draw))
    detector = Detector(DeepKernel.from_median(reference), reference, config.detector.permutations)
    clean, known = sample(extract, _smooth(300, draw)), _smooth(300, draw)
    examples = Examples(sample(extract, known), sample(extract, _grainy(known, draw)))
    detector.calibrate(clean, config.detector, seed=0, examples=examples)
    defense = paper_defense(classifier, extract, detector, DUNet(), config)
    batch = _smooth(100, draw).to(memory_format=torch.channels_last)
    if defense(batch).adversarial:
        raise RuntimeError("the batch was flagged: its time is not that of a clean one")
    with torch.no_grad():
        seconds = medians({"bare": lambda: classifier(batch), "defended": lambda: defense(batch)}, rounds=15)
    ratio = seconds["defended"] / seconds["bare"]
    lines = [f"clean-route decision / bare forward: {ratio:.3f} (target <= 1.10; {seconds['bare'] * 1e3:.0f} ms bare)"]
    batches = {many: torch.cat([_grainy(batch[:many], draw), batch[many:]]) for many in ATTACKED}
    return "\n".join([*lines, *(_flagged(defense, mixed, many) for many, mixed in batches.items()), _hardened(draw)])


def _flagged(defense: Defense, batch: Tensor, many: int) -> str:
    """A flagged batch with its suspects rescued, against all of it rescued."""
    config = defense.config.model_copy(update={"rescue": "suspects"})
    ours, found = Defense(**vars(replace(defense.parts, config=config))), defense(batch)
    if not found.adversarial:
        raise RuntimeError("the batch passed: its time is not that of a flagged one")
    seconds = medians({"batch": lambda: defense(batch), "suspects": lambda: ours(batch)}, rounds=3)
    ratio, count = seconds["suspects"] / seconds["batch"], int(found.suspects.sum())
    return f"flagged batch, {many} attacked, {count} suspects: suspects / whole batch rescued: {ratio:.3f} (target <= 1.10)"


def _hardened(draw: torch.Generator) -> str:
    """The hardened bundle of the package against its classifier alone."""
    defense, clean = load(find("cifar10-small-hardened")), load_data("cifar10-small").test.images[:100]
    attacked = _grainy(clean, draw)
    if defense(clean).adversarial or not defense(attacked).adversarial:
        raise RuntimeError("the clean batch was flagged, or the other one was not")
    with torch.no_grad():
        runs = {
            "bare": lambda: defense.classifier(clean),
            "clean": lambda: defense(clean),
            "flagged": lambda: defense(attacked),
        }
        seconds = medians(runs, rounds=7)
    ratios = (f"{kind} batch / bare forward: {seconds[kind] / seconds['bare']:.2f}" for kind in ("clean", "flagged"))
    return f"hardened, {', '.join(ratios)} (target <= 2.3; {seconds['bare'] * 1e3:.0f} ms bare)"


def _smooth(count: int, draw: torch.Generator) -> Tensor:
    return F.interpolate(torch.rand(count, 3, 5, 5, generator=draw), (32, 32), mode="bilinear")


def _grainy(images: Tensor, draw: torch.Generator) -> Tensor:
    return (images + 0.5 * torch.randn(images.shape, generator=draw)).clamp(0, 1)

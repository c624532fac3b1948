"""What the defence costs a clean batch: a decision on 100 images against the bare classifier's forward pass."""

import torch

from benchmarks.timing import medians
from twoprong.config import DetectorConfig, FitConfig
from twoprong.detect.detector import Detector
from twoprong.detect.kernel import DeepKernel
from twoprong.models.dunet import DUNet
from twoprong.models.features import Features
from twoprong.models.layout import channels_last
from twoprong.models.zoo import build
from twoprong.recipe import paper_defense, sample


def run() -> str:
    """ResNet-18, 32×32, CPU. Weights are random: the time does not depend on them. Reference of the default 500 images."""
    draw = torch.Generator().manual_seed(0)
    config = FitConfig(detector=DetectorConfig(max_batch_size=100, confidence=0.99))
    classifier = channels_last(build("resnet18", 10, 3)).eval().requires_grad_(False)
    extract = Features(classifier)
    reference = sample(extract, torch.rand(config.splits.reference, 3, 32, 32, generator=draw))
    detector = Detector(DeepKernel.from_median(reference), reference, config.detector.permutations)
    clean = sample(extract, torch.rand(300, 3, 32, 32, generator=draw))
    detector.calibrate(clean, config.detector, seed=0)
    defense = paper_defense(classifier, extract, detector, DUNet(), config)
    batch = torch.rand(100, 3, 32, 32, generator=draw).to(memory_format=torch.channels_last)
    if defense(batch).adversarial:
        raise RuntimeError("the batch was flagged: its time is not that of a clean one")
    with torch.no_grad():
        seconds = medians({"bare": lambda: classifier(batch), "defended": lambda: defense(batch)}, rounds=15)
    ratio = seconds["defended"] / seconds["bare"]
    return f"clean-route decision / bare forward: {ratio:.3f} (target <= 1.10; {seconds['bare'] * 1e3:.0f} ms bare)"

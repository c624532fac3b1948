"""What the GPU path costs: `python -m benchmarks.gpu`. WRN-28-10 on 32x32, random weights and images; medians of events.

Beside each time: what the exact float32 path takes in the same run, and the share of the card's measured bf16 matrix rate.
FLOPs are counted by torch on the layers as they are (a multiplication and an addition are two).
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from twoprong.attacks.base import loss_gradient
from twoprong.attacks.losses import cross_entropy
from twoprong.config import DenoiserConfig, DetectorConfig, FitConfig
from twoprong.defense import Defense
from twoprong.detect.detector import Detector
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.evaluation.accelerated import Accelerated
from twoprong.models.dunet import DUNet
from twoprong.models.fast import compiled, fast
from twoprong.models.features import Features
from twoprong.models.layout import channels_last
from twoprong.models.zoo import build
from twoprong.purify.loss import add_noise
from twoprong.purify.train import objective
from twoprong.recipe import paper_defense, sample
from twoprong.routes import Gated, Robust
from twoprong.seeds import generator, initialised

TARGETS = {"train": 33.0, "attack": 100.0, "flagged": 3.5, "ratio": 1.15, "hardened": 2.3}


def milliseconds(run: Callable[[], object], rounds: int = 10, warm: int = 4) -> float:
    """The median of single calls, by events on the GPU's own clock, after `warm` calls that compile and choose kernels."""
    times = []
    for turn in range(rounds + warm):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if turn >= warm:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def tera(run: Callable[[], object]) -> float:
    """10^12 floating-point operations of a call of uncompiled code."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops() / 1e12


def matrix_rate(size: int = 8192) -> float:
    """TFLOP/s of a large bf16 matrix product on this card."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / milliseconds(lambda: a @ b, 20) / 1e9


def make_defense(name: str, threshold: float) -> Defense:
    """A defence with random weights that flags everything or nothing."""
    with initialised(0, "benchmark"):
        classifier, denoiser = build(name, 10, 3), DUNet(3)
    classifier, denoiser = (channels_last(part.cuda()).eval().requires_grad_(False) for part in (classifier, denoiser))
    reference = torch.rand(500, 3, 32, 32, device="cuda", generator=generator(0, "reference", device="cuda"))
    seen = sample(Features(classifier), reference)
    detector = Detector(DeepKernel.from_median(seen).cuda().requires_grad_(False), seen)
    detector.calibrate(seen, DetectorConfig(threshold=threshold), 0)
    return paper_defense(classifier, Features(classifier), detector.cuda(), denoiser, FitConfig())


def hardened(defense: Defense) -> Defense:
    """The same test before the routes of the hardened mode, with a robust network of the classifier's size."""
    with initialised(1, "benchmark"):
        robust = build(defense.classifier.spec.name, 10, 3)
    robust = channels_last(robust.cuda()).eval().requires_grad_(False)
    passing, flagged = Gated(defense.classifier, robust, 0.1), Robust(robust)
    return Defense(**vars(replace(defense.parts, passing=passing, flagged=flagged)))


def training_step(defense: Defense, bf16: bool) -> Callable[[], object]:
    """One step of the denoiser's training on 500 images, as `purify.train` does it."""
    images = torch.rand(500, 3, 32, 32, device="cuda")
    labels = torch.randint(10, (500,), device="cuda")
    denoiser = channels_last(DUNet(3).cuda()).train()
    features = Features(fast(defense.classifier)) if bf16 else defense.extractor
    config = DenoiserConfig()
    loss_of = objective(
        denoiser, features, defense.detector.kernel, config, "bf16" if bf16 else "fp32", compiled if bf16 else None
    )
    clean = Sample(images, sample(defense.extractor, images).features)
    optimiser = torch.optim.Adam(denoiser.parameters(), lr=1e-3, fused=True)
    draw = generator(0, "noise", device="cuda")

    def step() -> None:
        optimiser.zero_grad()
        loss = loss_of(add_noise(images, config, draw), *clean, labels)
        loss.backward(inputs=list(denoiser.parameters()))
        optimiser.step()

    return step


def attack_step(defense: Defense) -> Callable[[], object]:
    """One look of an adaptive attack: 100 images, 20 draws of the noise, the gradient through denoiser and classifier."""
    images = torch.rand(100, 3, 32, 32, device="cuda")
    labels = torch.randint(10, (100,), device="cuda")
    draw = generator(0, "attack", device="cuda")
    return lambda: loss_gradient(defense, images, labels, cross_entropy, draw, "flagged", 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classifier", default="wrn-28-10")
    name = parser.parse_args().classifier
    if not torch.cuda.is_available():
        sys.exit("no CUDA device is visible")
    torch.backends.cudnn.benchmark = True
    rate = matrix_rate()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {name}: bf16 matrix rate {rate:.0f} TFLOP/s", flush=True
    )
    print("| work | exact, ms | fast, ms | target | TFLOP/s | of the matrix rate |\n|---|---|---|---|---|---|")
    flagging, passing = make_defense(name, -10.0), make_defense(name, 0.2)
    quick, quick_passing = Accelerated(flagging), Accelerated(passing)
    batch = torch.rand(100, 3, 32, 32, device="cuda")

    def row(work: str, exact: Callable[[], object], hurried: Callable[[], object], target: float, rounds: int) -> None:
        work_done, slow, took = tera(exact), milliseconds(exact, 3, 2), milliseconds(hurried, rounds)
        speed = 1e3 * work_done / took
        print(f"| {work} | {slow:.1f} | {took:.2f} | {target:g} | {speed:.0f} | {speed / rate:.0%} |", flush=True)

    exact_step = training_step(flagging, bf16=False)
    row("denoiser training step, 500 images", exact_step, training_step(flagging, bf16=True), TARGETS["train"], 10)
    row("attack step, 100 images x 20 draws", attack_step(flagging), attack_step(quick), TARGETS["attack"], 10)
    row("inference, flagged batch of 100", lambda: flagging(batch), lambda: quick(batch), TARGETS["flagged"], 30)
    with torch.no_grad():
        bare = milliseconds(lambda: quick.classifier(batch), 30)
    clean = milliseconds(lambda: quick_passing(batch), 30)
    print(f"clean batch of 100: {clean:.2f} ms against {bare:.2f} bare: {clean / bare:.2f}x (target {TARGETS['ratio']}x)")
    for kind, one in (("clean", passing), ("flagged", flagging)):
        quick_one = Accelerated(hardened(one))
        took = milliseconds(lambda one=quick_one: one(batch), 30)  # type: ignore[misc]
        print(f"hardened, {kind} batch of 100: {took:.2f} ms: {took / bare:.2f}x bare (target {TARGETS['hardened']}x)")


if __name__ == "__main__":
    main()

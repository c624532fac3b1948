"""Trains an accurate ResNet-18 (A) and, with its help, a robust one (R) on CIFAR-10; results go into OUT as they come.

    python tools/train_robust.py --data DIR --out OUT [--minutes 20]

Learned from is the part of the training images that a fit leaves the denoiser; epochs are chosen on the kernel's part. OUT/A
and OUT/R hold best.safetensors (half precision), last.safetensors, checkpoint.safetensors, history.jsonl. --resume goes on
after a kill. With --minutes the number of epochs of R follows from the speed measured here. Test images are not touched.
"""

import argparse
import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import twoprong as tp
from twoprong.config import SplitConfig
from twoprong.data import Labelled, load_data, split
from twoprong.errors import InputError, TwoprongError
from twoprong.models.precision import compiler_for
from twoprong.robust.run import BEST, Mark, load_weights, read_marks, train
from twoprong.robust.settings import RobustConfig
from twoprong.robust.trainer import Exam, Trainer
from twoprong.storage import fingerprint

ACCURATE = {"model": "resnet18", "method": "natural", "awp": 0.0, "batch_size": 512, "lr": 0.4, "ema": 0.998}
BEGAN = time.time()


def main() -> None:
    arguments = parsed()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    learn, held_out = parts(arguments, device)
    robust = RobustConfig.model_validate(given(arguments.set))
    if arguments.benchmark:
        benchmark(robust, learn, arguments)
        return
    usual = {**ACCURATE, "epochs": arguments.accurate_epochs, "batch_size": min(512, 2 * robust.batch_size)}
    accurate = RobustConfig.model_validate(usual | given(arguments.set_accurate))
    helper = network("A", accurate, learn, held_out, None, arguments)
    if arguments.only_accurate:
        return
    deadline = arguments.finish_at or (BEGAN + 60 * arguments.minutes if arguments.minutes else None)
    network("R", robust, learn, held_out, helper, arguments, deadline)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder with cifar10.npz or the official batches")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--minutes", type=float, help="how long it may take in all; sets the number of epochs of R")
    parser.add_argument("--finish-at", type=float, help="the same as a point in time, in seconds since 1970")
    parser.add_argument("--accurate-epochs", type=int, default=60, help="epochs of A (default: 60)")
    parser.add_argument("--only-accurate", action="store_true", help="stop after A")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of R, e.g. beta=3")
    parser.add_argument("--set-accurate", action="append", default=[], metavar="NAME=VALUE", help="a setting of A")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--start", help="weights that R begins with, or a hardened bundle; default: random ones")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    parser.add_argument("--limit", type=int, help="learn from so many images only, for a trial")
    parser.add_argument("--benchmark", action="store_true", help="only measure the seconds of a step")
    return parser.parse_args()


def parts(arguments: argparse.Namespace, device: torch.device) -> tuple[Labelled, Labelled]:
    """The images to learn from and those to choose the epoch on."""
    divided = split(load_data("cifar10", arguments.data).train, SplitConfig(), arguments.seed)
    learn, held_out = divided.denoiser, divided.kernel
    if arguments.limit:
        learn, held_out = learn[: arguments.limit], held_out[: arguments.limit]
    say(f"{len(learn)} images to learn from, {len(held_out)} to choose the epoch on, {device}")
    return learn.to(device), held_out.to(device)


def network(
    name: str,
    config: RobustConfig,
    learn: Labelled,
    held_out: Labelled,
    helper: nn.Module | None,
    arguments: argparse.Namespace,
    deadline: float | None = None,
) -> nn.Module:
    """Train one network, or take the finished one that stands in its folder; the best average, frozen."""
    folder = arguments.out / name
    note = folder / "training.json"
    earlier = json.loads(note.read_text()) if arguments.resume and note.exists() else None
    if earlier and earlier["done"]:
        return load_weights(folder / BEST).to(learn.images.device)
    if earlier:
        config = RobustConfig.model_validate(earlier["settings"])
    trainer, exam = made(config, learn, held_out, helper, arguments)
    if deadline and not earlier:
        config = config.model_copy(update={"epochs": affordable(trainer, config, deadline)})
        trainer.config = config
    folder.mkdir(parents=True, exist_ok=True)
    say(f"{name}: {config.model_dump_json()}")
    key = fingerprint(config.model_dump(), arguments.seed, arguments.limit, "" if helper is None else helper)
    note.write_text(json.dumps({"settings": config.model_dump(), "done": False}))
    began, first = time.time(), max((mark.epoch for mark in read_marks(folder) if earlier), default=0)

    def report(mark: Mark) -> None:
        left = (time.time() - began) / max(1, mark.epoch - first) * (config.epochs - mark.epoch)
        say(
            f"{name}: epoch {mark.epoch} of {config.epochs}, loss {mark.loss:.3f}, held out: clean {mark.clean:.1%}, "
            f"under PGD-20 {mark.robust:.1%}; {left:.0f} s left"
        )

    marks = train(trainer, exam, folder, key, arguments.resume, max(1, config.epochs // 25), report)
    best = max(marks, key=lambda mark: mark.score)
    say(f"{name}: done in {time.time() - began:.0f} s; best epoch {best.epoch}: {best.clean:.1%} / {best.robust:.1%}")
    note.write_text(json.dumps({"settings": config.model_dump(), "done": True, "seconds": time.time() - began}))
    return load_weights(folder / BEST).to(learn.images.device)


def made(
    config: RobustConfig, learn: Labelled, held_out: Labelled, helper: nn.Module | None, arguments: argparse.Namespace
) -> tuple[Trainer, Exam]:
    precision = "bf16" if learn.images.is_cuda else "fp32"
    compiler = None if arguments.eager else compiler_for(precision, learn.images)
    start = robust_of(arguments.start) if arguments.start and helper is not None else None
    trainer = Trainer(config, learn, 10, arguments.seed, helper, precision, compiler, start)
    attack = None if config.method == "natural" else config.attack
    exam = Exam(trainer.average.model, held_out, attack, trainer.size, precision, compiler)
    return trainer, exam


def robust_of(given: str) -> nn.Module:
    """The network in a file of weights, or the robust one of a bundle."""
    if Path(given).is_file():
        return load_weights(Path(given))
    networks = tp.load(given).flagged.networks()
    if "robust" not in networks:
        raise InputError(f"--start {given}: expected weights or a hardened bundle, got one without a robust network")
    return networks["robust"]


def affordable(trainer: Trainer, config: RobustConfig, deadline: float) -> int:
    """How many epochs fit: a step is timed in each phase; a tenth is kept for examinations and slow spells."""
    edges = sorted({0.0, config.awp_from, config.early_until, 1.0})
    step = sum((end - begin) * trainer.rehearse((begin + end) / 2) for begin, end in pairwise(edges))
    say(f"{1000 * step:.1f} ms a step on average, {step * trainer.per_epoch:.2f} s an epoch")
    return max(1, int(0.9 * (deadline - time.time()) / (step * trainer.per_epoch)))


def benchmark(config: RobustConfig, learn: Labelled, arguments: argparse.Namespace) -> None:
    """Seconds per step of A, and of R early, with perturbed weights, and late."""
    accurate, _ = made(RobustConfig.model_validate(ACCURATE), learn, learn, None, arguments)
    say(f"A, batch {accurate.size}: {1000 * accurate.rehearse(0.5):.1f} ms a step")
    trainer, _ = made(config, learn, learn, accurate.average.model, arguments)
    for done in (0.05, 0.3, 0.9):
        seconds = trainer.rehearse(done)
        epoch = seconds * 46500 / trainer.size
        say(f"R, batch {trainer.size} at {done:.0%}: {1000 * seconds:.1f} ms a step, {epoch:.2f} s for 46,500 images")


def given(assignments: list[str]) -> dict[str, object]:
    return {name: number(text) for name, text in (assignment.split("=", 1) for assignment in assignments)}


def number(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def say(text: str) -> None:
    print(f"{time.time() - BEGAN:7.1f} s  {text}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except TwoprongError as error:
        sys.exit(f"error: {error}")

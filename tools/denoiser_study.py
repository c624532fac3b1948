"""Denoisers with other noise and training images around one bundle: python tools/denoiser_study.py BUNDLE CIFAR_ROOT OUT

Each candidate is trained as the bundle's own was, with other settings, and scored on held-out training images (the bundle's
calibration part, which neither classifier nor denoiser has learned; no test image is used): clean images on the flagged
route, PGD on the bare classifier, and Algorithm 3 with all batches on that route, for 1, 4 and 8 draws of the noise whose
logits are averaged. OUT.json keeps what is done: a second call goes on. On an H200 a candidate takes about four minutes.

    --only NAME    candidates by name     --epochs N --images N    a quick trial (N training images)
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import twoprong as tp
from twoprong.attacks import ATTACKS, PGD
from twoprong.attacks.craft import craft
from twoprong.data import Labelled, load_data
from twoprong.data.splits import split
from twoprong.detect.kernel import DeepKernel
from twoprong.errors import TwoprongError
from twoprong.models.fast import fast
from twoprong.models.features import Features
from twoprong.models.precision import compiler_for
from twoprong.purify.train import train_denoiser
from twoprong.recipe import sample
from twoprong.routes import Denoised
from twoprong.seeds import generator
from twoprong.storage import write_atomic

CANDIDATES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sigma 0.15": {"sigma": 0.15},
    "sigma 0.10": {"sigma": 0.10},
    "clamped 0.25": {"noise": "clamped"},
    "clean 0.25": {"clean_share": 0.25},
    "clean 0.5": {"clean_share": 0.5},
    "sigma 0.15, clean 0.25": {"sigma": 0.15, "clean_share": 0.25},
    "clamped 0.25, clean 0.25": {"noise": "clamped", "clean_share": 0.25},
    "alpha 0.1": {"alpha": 0.1},
    "sigma 0.15, alpha 0.1, clean 0.25": {"sigma": 0.15, "alpha": 0.1, "clean_share": 0.25},
}
DRAWS = (1, 4, 8)  # of the noise, averaged
SCORED = 1000  # held-out images
ALGORITHM_3 = 200  # of them, in batches of 100


def study(bundle: str, root: Path, out: Path, names: list[str], epochs: int | None, images: int | None) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = "bf16" if device.type == "cuda" else "fp32"
    defense = tp.load(bundle, device=device, rescue="batch")
    parts = split(load_data("cifar10", root).to(device).train, defense.config.splits, defense.config.seed)
    learned = parts.denoiser if images is None else parts.denoiser[:images]
    scored = parts.calibration[: SCORED if images is None else images]
    quick = (
        Features(fast(defense.classifier, compiler_for(precision, learned.images)))
        if precision == "bf16"
        else defense.extractor
    )
    work = out.with_name(f"{out.stem}-work")
    attacked = craft(quick.classifier, learned, defense.config.attack, work)
    clean = sample(defense.extractor, learned.images)
    guide = DeepKernel.from_median(sample(defense.extractor, parts.kernel.images), defense.config.kernel.beta0)
    guide = guide.to(device).requires_grad_(False)
    bare = _pgd(defense, scored)
    file, done = out.with_suffix(".json"), {}
    if file.exists():
        done = json.loads(file.read_text())
    for name in names:
        if name in done:
            continue
        start, settings = time.perf_counter(), CANDIDATES[name] | ({} if epochs is None else {"epochs": epochs})
        config = defense.config.denoiser.model_copy(update=settings)
        denoiser = train_denoiser(
            clean, attacked, learned.labels, quick, guide, config, defense.config.seed, precision=precision
        )
        trained = time.perf_counter() - start
        route = Denoised(defense.classifier, denoiser, config.sigma, config.noise, config.clamp)
        around = tp.Defense(**vars(replace(defense.parts, flagged=route)))
        done[name] = {"settings": settings, **_scores(around, scored, bare), "training seconds": round(trained, 1)}
        done[name]["seconds"] = round(time.perf_counter() - start, 1)
        text = json.dumps(done, indent=1) + "\n"
        write_atomic(file, lambda path, text=text: path.write_text(text, encoding="utf-8"))
        print(name, done[name], flush=True)


def _pgd(defense: tp.Defense, data: Labelled) -> torch.Tensor:
    draw = generator(0, "denoiser study", device=data.images.device)
    parts = zip(data.images.split(100), data.labels.split(100), strict=True)
    return torch.cat([PGD(eps=defense.config.attack.eps, steps=20)(defense.classifier, x, y, draw).images for x, y in parts])


def _scores(defense: tp.Defense, data: Labelled, bare: torch.Tensor) -> dict[str, Any]:
    """Accuracies on the flagged route by the number of draws."""
    draw = generator(0, "denoiser scores", device=data.images.device)
    paper = ATTACKS["paper"](eps=defense.config.attack.eps, steps=40, draws=4)
    some = data[:ALGORITHM_3]
    parts = zip(some.images.split(100), some.labels.split(100), strict=True)
    known = torch.cat([paper(defense, x, y, draw).images for x, y in parts])
    kinds = {"clean": (data.images, data.labels), "pgd on bare": (bare, data.labels), "algorithm 3": (known, some.labels)}
    found: dict[str, Any] = {}
    for kind, (images, labels) in kinds.items():
        for draws in DRAWS:
            with torch.no_grad():
                logits = [defense.flagged.logits(part, draws, draw).mean(0) for part in images.split(100)]
            found[f"{kind}, {draws} draws"] = (torch.cat(logits).argmax(1) == labels).double().mean().item()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--images", type=int)
    given = parser.parse_args()
    try:
        study(given.bundle, given.root, given.out, given.only, given.epochs, given.images)
    except TwoprongError as error:
        sys.exit(f"error: {error}")

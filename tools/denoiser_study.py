"""Denoisers with other noise and training images around one bundle: python tools/denoiser_study.py BUNDLE CIFAR_ROOT OUT

Each candidate is trained as the bundle's own was, with other settings and fewer epochs, and scored on held-out training
images (the bundle's calibration part, which neither classifier nor denoiser has learned; no test image is used): clean
images on the flagged route, PGD on the bare classifier, PGD on another network, and Algorithm 3 with all batches on that
route, for 1, 4 and 8 draws of the noise whose logits are averaged. OUT.json and OUT.md keep what is done: a second call goes
on.

    --only NAME ...      candidates by name           --epochs N    of each training (20)
    --surrogate FILE     another network's weights    --images N    of training and scoring, for a quick trial
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from blame import made, origin, publish
from torch import Tensor, nn

import twoprong as tp
from twoprong.attacks import ATTACKS, PGD
from twoprong.attacks.craft import craft
from twoprong.config import DenoiserConfig
from twoprong.data import Labelled, load_data
from twoprong.data.splits import split
from twoprong.detect.kernel import DeepKernel
from twoprong.errors import TwoprongError
from twoprong.models.dunet import DUNet
from twoprong.models.fast import fast
from twoprong.models.features import Features
from twoprong.models.precision import Precision, compiler_for, computing
from twoprong.purify.train import train_denoiser
from twoprong.recipe import sample
from twoprong.robust.run import load_weights
from twoprong.routes import Denoised
from twoprong.seeds import generator

OWN = "own share"  # of the training images that are attacked through the denoiser itself, made anew every few epochs
CANDIDATES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sigma 0.10, clean 0.25": {"sigma": 0.10, "clean_share": 0.25},
    "sigma 0.10, clean 0.25, own 0.5": {"sigma": 0.10, "clean_share": 0.25, OWN: 0.5},
    "sigma 0.05, clean 0.25": {"sigma": 0.05, "clean_share": 0.25},
    "sigma 0.05, clean 0.25, own 0.5": {"sigma": 0.05, "clean_share": 0.25, OWN: 0.5},
    "sigma 0.25, clean 0.25, own 0.5": {"clean_share": 0.25, OWN: 0.5},
    "clamped 0.25": {"noise": "clamped"},
    "sigma 0.10, clean 0.5": {"sigma": 0.10, "clean_share": 0.5},
    "sigma 0.05, clean 0.5": {"sigma": 0.05, "clean_share": 0.5},
    "clean 0.25": {"clean_share": 0.25},
    "clamped 0.25, clean 0.25": {"noise": "clamped", "clean_share": 0.25},
    "sigma 0.10, alpha 0.1, clean 0.25": {"sigma": 0.10, "alpha": 0.1, "clean_share": 0.25},
}
DRAWS = (1, 4, 8)  # of the noise, averaged
SCORED = 1000  # held-out images
ALGORITHM_3 = 200  # of them, in batches of 100
RENEWALS, RENEW_STEPS = 5, 5  # in a training; of the attack


def study(given: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision: Precision = "bf16" if device.type == "cuda" else "fp32"
    defense = tp.load(given.bundle, device=device, rescue="batch")
    parts = split(load_data("cifar10", given.root).to(device).train, defense.config.splits, defense.config.seed)
    learned, scored = parts.denoiser[: given.images], parts.calibration[: given.images or SCORED]
    quick = defense.extractor
    if precision == "bf16":
        quick = Features(fast(defense.classifier, compiler_for(precision, learned.images)))
    attacked = craft(quick.classifier, learned, defense.config.attack, Path(f"{given.out}-work"))
    clean = sample(defense.extractor, learned.images)
    guide = DeepKernel.from_median(sample(defense.extractor, parts.kernel.images), defense.config.kernel.beta0)
    guide = guide.to(device).requires_grad_(False)
    eps = defense.config.attack.eps
    kinds = {"clean": scored.images, "pgd on bare": _pgd(defense.classifier, scored, eps)}
    if given.surrogate is not None:
        kinds["transferred pgd"] = _pgd(load_weights(given.surrogate).to(device), scored, eps)
    file, done = Path(f"{given.out}.json"), {}
    if file.exists():
        done = json.loads(file.read_text())["candidates"]
    for name in given.only:
        if name in done:
            continue
        torch.compiler.reset()  # or after some candidates nothing would be compiled any more
        start, settings = time.perf_counter(), {**CANDIDATES[name], "epochs": given.epochs}
        own = settings.pop(OWN, 0.0)
        config = defense.config.denoiser.model_copy(update=settings)
        images = attacked.clone()
        renew = _renewing(defense, learned, images, own, config, precision)
        denoiser = train_denoiser(
            clean, images, learned.labels, quick, guide, config, defense.config.seed, precision=precision, renew=renew
        )
        trained = time.perf_counter() - start
        route = Denoised(defense.classifier, denoiser, config.sigma, config.noise, config.clamp)
        around = tp.Defense(**vars(replace(defense.parts, flagged=route)))
        scores = _scores(around, scored, kinds)
        done[name] = {**scores, "training seconds": trained, "seconds": time.perf_counter() - start}
        command = f"python tools/denoiser_study.py {given.bundle} CIFAR_ROOT {given.out} --epochs {given.epochs}"
        found = {"candidates": done, "learned": len(learned), "scored": len(scored), "made": made(command)}
        publish(found, markdown(found), given.out)
        print(name, done[name], flush=True)


def _pgd(network: nn.Module, data: Labelled, eps: float) -> Tensor:
    draw = generator(0, "denoiser study", device=data.images.device)
    parts = zip(data.images.split(100), data.labels.split(100), strict=True)
    return torch.cat([PGD(eps=eps, steps=20)(network, x, y, draw).images for x, y in parts])


def _renewing(
    defense: tp.Defense, data: Labelled, attacked: Tensor, share: float, config: DenoiserConfig, precision: Precision
) -> Callable[[int, DUNet], None] | None:
    """Puts PGD through the denoiser as it is in the place of a share of the attacked images, several times in a training."""
    if share == 0:
        return None
    draw, every = generator(0, "renewed", device=attacked.device), max(1, config.epochs // RENEWALS)
    attack = PGD(eps=defense.config.attack.eps, steps=RENEW_STEPS)

    def renew(epoch: int, denoiser: DUNet) -> None:
        if epoch == 0 or epoch % every:
            return
        route = Denoised(defense.classifier, denoiser, config.sigma, config.noise, config.clamp)

        def logits(images: Tensor) -> Tensor:
            with computing(precision, images.device):
                return route.logits(images, 1, draw)[0]

        chosen = torch.randperm(len(data), generator=draw, device=attacked.device)[: round(share * len(data))]
        for rows in chosen.split(500):
            attacked[rows] = attack(logits, data.images[rows], data.labels[rows], draw).images

    return renew


def _scores(defense: tp.Defense, data: Labelled, kinds: dict[str, Tensor]) -> dict[str, float]:
    """Accuracies on the flagged route by the number of draws."""
    draw = generator(0, "denoiser scores", device=data.images.device)
    paper = ATTACKS["paper"](eps=defense.config.attack.eps, steps=40, draws=4)
    some = data[:ALGORITHM_3]
    parts = zip(some.images.split(100), some.labels.split(100), strict=True)
    known = torch.cat([paper(defense, x, y, draw).images for x, y in parts])
    found = {}
    for kind, images in {**kinds, "algorithm 3": known}.items():
        with torch.no_grad():
            logits = torch.cat([defense.flagged.logits(part, max(DRAWS), draw) for part in images.split(100)], 1)
        for draws in DRAWS:
            right = logits[:draws].mean(0).argmax(1) == data.labels[: len(images)]
            found[f"{kind}, {draws}"] = right.double().mean().item()
    return found


def markdown(found: dict[str, Any]) -> str:
    """A row per candidate; accuracies for 1, 4 and 8 draws."""
    kinds = list(dict.fromkeys(key.rsplit(",", 1)[0] for one in found["candidates"].values() for key in one if "," in key))
    lines = [
        "# Denoisers",
        "",
        f"Trained on {found['learned']:,} images; {found['scored']:,} held-out training images on the flagged route, "
        f"{ALGORITHM_3} of them under Algorithm 3. Accuracy for {', '.join(map(str, DRAWS))} draws of the noise, averaged.",
        "",
        f"| candidate | {' | '.join(kinds)} | training, s | all, s |",
        "|---|" + "---:|" * (len(kinds) + 2),
    ]
    for name, one in found["candidates"].items():
        cells = [" / ".join(f"{one[f'{kind}, {draws}']:.1%}" for draws in DRAWS) for kind in kinds]
        lines.append(f"| {name} | {' | '.join(cells)} | {one['training seconds']:.0f} | {one['seconds']:.0f} |")
    return "\n".join([*lines, "", *origin(found["made"])])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("root", type=Path)
    parser.add_argument("out")
    parser.add_argument("--only", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--surrogate", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int)
    try:
        study(parser.parse_args())
    except TwoprongError as error:
        sys.exit(f"error: {error}")

"""Denoisers with other noise and training images around one bundle: python tools/denoiser_study.py BUNDLE CIFAR_ROOT OUT

Each candidate is trained as the bundle's own was, with other settings and fewer epochs, and scored on held-out training
images (the bundle's calibration part, which neither classifier nor denoiser has learned; no test image is used): clean
images on the flagged route, PGD on the bare classifier, PGD on another network, and Algorithm 3 with all batches on that
route, for 1, 4 and 8 draws of the noise whose logits are averaged. OUT.json and OUT.md keep what is done: a second call goes
on, and several at a time, each with its own --only, share them. The last line is the choice (`chosen`).

    --only NAME ...      candidates by name                     --epochs N    of each training (20)
    --surrogate BUNDLE   whose classifier is another network    --images N    of training and scoring, for a quick trial
"""

import argparse
import fcntl
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from blame import made, origin, publish
from torch import Tensor, nn

import twoprong as tp
from twoprong.attacks import ATTACKS, PGD
from twoprong.attacks.craft import craft
from twoprong.data import Labelled, load_data
from twoprong.data.splits import split
from twoprong.detect.kernel import DeepKernel
from twoprong.errors import TwoprongError
from twoprong.models.fast import fast
from twoprong.models.features import Features
from twoprong.models.precision import Precision, compiler_for
from twoprong.purify.train import train_denoiser
from twoprong.recipe import sample
from twoprong.routes import Denoised
from twoprong.seeds import generator

CANDIDATES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "clean 0.25, alpha 0.1": {"clean_share": 0.25, "alpha": 0.1},
    "clamped": {"noise": "clamped"},
    "clamped, clean 0.25": {"noise": "clamped", "clean_share": 0.25},
    "clamped, alpha 0.1": {"noise": "clamped", "alpha": 0.1},
    "sigma 0.15, clean 0.25": {"sigma": 0.15, "clean_share": 0.25},
    "sigma 0.15, clean 0.25, alpha 0.1": {"sigma": 0.15, "clean_share": 0.25, "alpha": 0.1},
    "sigma 0.10, clean 0.25, alpha 0.1": {"sigma": 0.10, "clean_share": 0.25, "alpha": 0.1},
}
DRAWS = (1, 4, 8)  # of the noise, averaged
SCORED = 1000  # held-out images
ALGORITHM_3 = 200  # of them, in batches of 100
LEAST_CLEAN = 0.85  # of clean images on the flagged route: 84 % asked, and about a standard error of 1,000 images


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
        kinds["transferred pgd"] = _pgd(tp.load(given.surrogate, device=device).classifier, scored, eps)
    for name in given.only:
        if name in finished(given.out):
            continue
        torch.compiler.reset()  # or after some candidates nothing would be compiled any more
        start = time.perf_counter()
        config = defense.config.denoiser.model_copy(update={**CANDIDATES[name], "epochs": given.epochs})
        denoiser = train_denoiser(
            clean, attacked, learned.labels, quick, guide, config, defense.config.seed, precision=precision
        )
        trained = time.perf_counter() - start
        route = Denoised(defense.classifier, denoiser, config.sigma, config.noise, config.clamp)
        scores = _scores(tp.Defense(**vars(replace(defense.parts, flagged=route))), scored, kinds)
        scores |= {"training seconds": trained, "seconds": time.perf_counter() - start}
        command = f"python tools/denoiser_study.py {given.bundle} CIFAR_ROOT {given.out} --epochs {given.epochs}"
        command += f" --surrogate {given.surrogate}" * (given.surrogate is not None)
        about = {"learned": len(learned), "scored": len(scored), "made": made(command)}
        with open(f"{given.out}.lock", "w") as lock:  # others may be at work beside
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = {"candidates": finished(given.out) | {name: scores}, **about}
            publish(found, markdown(found), given.out)
        print(name, scores, flush=True)
    done = finished(given.out)
    print(json.dumps({"chosen": (best := chosen(done)), "settings": CANDIDATES[best]}))


def finished(out: str) -> dict[str, dict[str, float]]:
    """The scores of the candidates that are done."""
    file = Path(f"{out}.json")
    return json.loads(file.read_text())["candidates"] if file.exists() else {}


def chosen(done: dict[str, dict[str, float]]) -> str:
    """The candidate to take: of those that keep enough clean images and as much under Algorithm 3 as today's denoiser, the
    one with the largest sum under all attacks; where none does, the largest sum with the clean images. One draw counts."""

    def total(name: str, *kinds: str) -> float:
        return sum(
            value for key, value in done[name].items() if key.endswith(", 1") and key.removesuffix(", 1") not in kinds
        )

    today = done.get("as it is", {}).get("algorithm 3, 1", 0.0)
    fit = [name for name, one in done.items() if one["clean, 1"] >= LEAST_CLEAN and one["algorithm 3, 1"] >= today]
    return max(fit, key=lambda name: total(name, "clean")) if fit else max(done, key=total)


def _pgd(network: nn.Module, data: Labelled, eps: float) -> Tensor:
    draw = generator(0, "denoiser study", device=data.images.device)
    parts = zip(data.images.split(100), data.labels.split(100), strict=True)
    return torch.cat([PGD(eps=eps, steps=20)(network, x, y, draw).images for x, y in parts])


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
    lines += ["", f"Chosen by the rule in the tool: {chosen(found['candidates'])}."]
    return "\n".join([*lines, "", *origin(found["made"])])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("root", type=Path)
    parser.add_argument("out")
    parser.add_argument("--only", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--surrogate")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int)
    try:
        study(parser.parse_args())
    except TwoprongError as error:
        sys.exit(f"error: {error}")

"""Who in a flagged batch is found, and who is blamed wrongly: python tools/blame.py BUNDLE CIFAR_ROOT OUT

On CIFAR-10 test images, which tune nothing. PGD (10 steps) on the bare classifier attacks them one by one, at several
budgets; batches are random, and the first of each are attacked. OUT.json and OUT.md are written; attacked images are kept in
OUT-work. Accuracies are of single draws of the noise, the same ones for all kinds of rescue.
"""

import json
import platform
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import twoprong as tp
from twoprong.attacks import PGD
from twoprong.data import Labelled, load_data
from twoprong.detect.kernel import Sample
from twoprong.errors import TwoprongError
from twoprong.measure import partition, wilson
from twoprong.recipe import sample
from twoprong.routes import Route
from twoprong.seeds import generator
from twoprong.storage import load_tensors, save_tensors, write_atomic

BUDGETS = (8, 4, 2, 1)  # of 255, for single images
MIXED = (8, 2)  # for mixtures
COUNT = 500  # images
SIZES = (25, 50, 100)
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
ROUNDS = 4  # random partitions into batches


class Kind:
    """Images of one kind before the defence: what the test sees, and whether each is right on each route."""

    @torch.no_grad()
    def __init__(self, defense: tp.Defense, images: Tensor, labels: Tensor, draw: torch.Generator) -> None:
        self.seen = sample(defense.extractor, images, 100)
        self.scores = defense.detector.scores(self.seen)
        self.defense, self.labels, self.draw = defense, labels, draw

    @cached_property
    def bare(self) -> Tensor:
        return self._right(self.defense.passing)

    @cached_property
    def rescued(self) -> Tensor:
        return self._right(self.defense.flagged)

    @torch.no_grad()
    def _right(self, route: Route) -> Tensor:
        logits = [route.logits(part, 1, self.draw)[0] for part in self.seen.pixels.split(100)]
        return torch.cat(logits).argmax(1) == self.labels


def study(defense: tp.Defense, data: Labelled, attacked: dict[int, Tensor]) -> dict[str, Any]:
    """Rows of single images, and of mixtures by budget, size and share."""
    draw = generator(0, "blame study")
    clean = Kind(defense, data.images, data.labels, draw)
    threshold, count = defense.threshold(1), len(data)
    singles, mixtures = [_rate("clean", clean.scores >= threshold)], []
    for budget, images in attacked.items():
        bad = Kind(defense, images, data.labels, draw)
        singles.append(_rate(f"{budget}/255", bad.scores >= threshold))
        for size in SIZES if budget in MIXED else ():
            for share in SHARES:
                batches = [batch for _ in range(ROUNDS) for batch in partition(count, size, draw)]
                row = _mixed(defense, clean, bad, batches, max(1, round(share * size)))
                mixtures.append({"eps": f"{budget}/255", "size": size, "share": share, **row})
    plain = [{"kind": "clean", "bare": _mean(clean.bare), "flagged route": _mean(clean.rescued)}]
    return {"images": count, "rounds": ROUNDS, "single": singles, "clean": plain, "mixtures": mixtures}


def _rate(name: str, hits: Tensor) -> dict[str, Any]:
    return {"images": name, "flagged": _mean(hits), "interval": wilson(int(hits.sum()), len(hits))}


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


def _mixed(defense: tp.Defense, clean: Kind, bad: Kind, batches: list[Tensor], many: int) -> dict[str, Any]:
    """Batches whose first `many` images are attacked. Recall and false blame are over flagged batches, accuracy over all."""
    detector, size = defense.detector, len(batches[0])
    attacked = torch.arange(size) < many
    counts = dict.fromkeys(("flagged", "found", "blamed", "batch", "suspects"), 0)
    for batch in batches:
        seen = Sample(
            *(_chosen(attacked, one[batch], other[batch]) for one, other in zip(bad.seen, clean.seen, strict=True))
        )
        bare, rescued = (_chosen(attacked, getattr(bad, k)[batch], getattr(clean, k)[batch]) for k in ("bare", "rescued"))
        flagged, suspects = detector(seen).adversarial, torch.zeros_like(attacked)
        if flagged:
            suspects = detector.suspects(seen)[0]
        counts["flagged"] += flagged
        counts["found"] += int((suspects & attacked).sum())
        counts["blamed"] += int((suspects & ~attacked).sum())
        counts["batch"] += int((rescued if flagged else bare).sum())
        counts["suspects"] += int(torch.where(suspects, rescued, bare).sum())
    images, flagged = len(batches) * size, counts["flagged"]
    innocent = flagged * (size - many)
    return {
        "flagged": flagged / len(batches),
        "recall": counts["found"] / (flagged * many) if flagged else None,
        "false_blame": counts["blamed"] / innocent if innocent else None,
        "accuracy_batch": counts["batch"] / images,
        "accuracy_suspects": counts["suspects"] / images,
    }


def _chosen(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *[1] * (yes.ndim - 1)), yes, no)


def craft(defense: tp.Defense, data: Labelled, work: Path) -> dict[int, Tensor]:
    """The attacked images by budget, each made once."""
    found = {}
    for budget in BUDGETS:
        file, draw = work / f"pgd-{budget}-{len(data)}.safetensors", torch.Generator().manual_seed(1)
        if not file.exists():
            attack, parts = PGD(eps=budget / 255, steps=10), zip(data.images.split(100), data.labels.split(100), strict=True)
            work.mkdir(parents=True, exist_ok=True)
            save_tensors(file, {"images": torch.cat([attack(defense.classifier, x, y, draw).images for x, y in parts])})
        found[budget] = load_tensors(file)[0]["images"]
    return found


def markdown(found: dict[str, Any], bundle: str) -> str:
    """The tables."""
    lines = [
        f"# Who in the batch: {bundle}",
        "",
        f"{found['images']} CIFAR-10 test images, PGD (10 steps) on the bare classifier, {found['rounds']} partitions.",
        "The attacker does not know the defence. Recall and false blame are over the images of flagged batches; accuracy is",
        "over all images, with the whole flagged batch on the flagged route (`batch`) or only its suspects.",
        "",
        f"Clean images, bare and on the flagged route: {found['clean'][0]['bare']:.1%}, "
        f"{found['clean'][0]['flagged route']:.1%}.",
        "",
        "| single images | flagged (95 %) |",
        "|---|---|",
        *(
            f"| {row['images']} | {row['flagged']:.1%} ({row['interval'][0]:.1%} to {row['interval'][1]:.1%}) |"
            for row in found["single"]
        ),
        "",
        "| budget | batch size | attacked | flagged | recall | false blame | accuracy, `batch` | accuracy, `suspects` |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    names = ("flagged", "recall", "false_blame", "accuracy_batch", "accuracy_suspects")
    for row in found["mixtures"]:
        cells = ("-" if row[name] is None else f"{row[name]:.1%}" for name in names)
        lines.append(f"| {row['eps']} | {row['size']} | {row['share']:.0%} | {' | '.join(cells)} |")
    made = found["made"]
    lines += ["", f"Commit {made['commit']}, torch {made['torch']}, {made['machine']}.", "", f"    {made['command']}", ""]
    return "\n".join(lines)


def main(bundle: str, root: str, out: str) -> None:
    defense, data = tp.load(bundle), load_data("cifar10", Path(root)).test[:COUNT]
    found = study(defense, data, craft(defense, data, Path(f"{out}-work")))
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    found["made"] = {
        "commit": commit,
        "torch": torch.__version__,
        "machine": f"CPU, {platform.machine()}",
        "command": f"python tools/blame.py {bundle} CIFAR_ROOT {out}",
    }
    text = json.dumps(found, indent=1) + "\n"
    write_atomic(Path(f"{out}.json"), lambda file: file.write_text(text, encoding="utf-8"))
    write_atomic(Path(f"{out}.md"), lambda file: file.write_text(markdown(found, bundle), encoding="utf-8"))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except TwoprongError as error:
        sys.exit(f"error: {error}")

"""Who in a flagged batch is found, and who is blamed wrongly: python tools/blame.py BUNDLE CIFAR_ROOT OUT

On CIFAR-10 test images, which tune nothing. PGD (10 steps) on the bare classifier attacks them one by one, at several
budgets; batches are random, and the first of each are attacked. Algorithm 3 attacks whole batches of 100, of which a share
is put into the otherwise clean batch, as in the paper. OUT.json, OUT.md and OUT.svg (a flagged batch) are written; attacked
images are kept in OUT-work. For a whole batch one draw of the noise counts, for suspects the mean of several, as deployed.

    --surrogate BUNDLE    also PGD (100 steps) that was made on the classifier of this one
    --algorithm-3 N       steps of Algorithm 3, with 20 draws each (200; a CPU takes hours for them); 0 leaves it out
    --part K/N            only every N-th batch of Algorithm 3 from the K-th on, so that several processes share a GPU; then
                          once more without it
"""

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import twoprong as tp
from twoprong.attacks import ATTACKS, PGD
from twoprong.data import Labelled, load_data
from twoprong.detect.kernel import Sample
from twoprong.errors import TwoprongError
from twoprong.evaluation.accelerated import accelerated
from twoprong.measure import partition, wilson
from twoprong.recipe import sample
from twoprong.report.suspects import drawn, shown
from twoprong.routes import Route
from twoprong.seeds import generator
from twoprong.storage import load_tensors, save_tensors, write_atomic
from twoprong.whitebox import AVERAGED, averaged

BUDGETS = (8, 4, 2, 1)  # of 255, for single images
MIXED = (8, 2)  # for mixtures
COUNT = 500  # images
SIZES = (25, 50, 100)
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
ROUNDS = 4  # random partitions into batches
ALGORITHM_3 = "Algorithm 3"
SIZE = 100  # of batches that Algorithm 3 attacks
SHOWN = 10  # attacked images in the batch of 100 that is drawn


class Kind:
    """Images of one kind before the defence: what the test sees, and whether each is right on each route.

    The networks run where the defence is; what they find is kept in the CPU's memory.
    """

    @torch.no_grad()
    def __init__(self, defense: tp.Defense, images: Tensor, labels: Tensor, draw: torch.Generator) -> None:
        self.device = defense.detector.reference_pixels.device
        seen = sample(defense.extractor, images.to(self.device), 100)
        self.scores = defense.detector.scores(seen).cpu()
        self.seen = Sample(*(part.cpu() for part in seen))
        self.defense, self.labels, self.draw = defense, labels.cpu(), draw

    @cached_property
    def bare(self) -> Tensor:
        return self._logits(self.defense.passing, 1)[0].argmax(1) == self.labels

    @cached_property
    def _rescued(self) -> Tensor:
        return self._logits(self.defense.flagged, AVERAGED)

    def rescued(self, draws: int) -> Tensor:
        """On the flagged route, by the mean of some draws of the noise."""
        return self._rescued[:draws].mean(0).argmax(1) == self.labels

    @torch.no_grad()
    def _logits(self, route: Route, draws: int) -> Tensor:
        parts = self.seen.pixels.to(self.device).split(25)
        return torch.cat([route.logits(part, draws, self.draw) for part in parts], 1).cpu()


def by_rescue(
    defense: tp.Defense, seen: Sample, bare: Tensor, rescued: Callable[[int], Tensor]
) -> tuple[bool, Tensor, dict[str, Tensor]]:
    """Whether a batch is flagged, its suspects, and which images are right by kind of rescue.

    `bare` says which are right on the passing route, `rescued` on the flagged one for a number of draws.
    """
    detector, suspects = defense.detector, torch.zeros(len(seen), dtype=torch.bool)
    flagged = detector.flags(detector.statistic(seen).item(), len(seen))
    if not flagged:
        return False, suspects, {"batch": bare, "suspects": bare}
    suspects = detector.suspects(seen)[0]
    draws = averaged(defense.flagged, int(suspects.sum()), len(seen))
    return True, suspects, {"batch": rescued(1), "suspects": torch.where(suspects, rescued(draws), bare)}


def study(
    defense: tp.Defense, near: tp.Defense, data: Labelled, attacked: dict[float, Tensor], others: dict[str, Tensor]
) -> dict[str, Any]:
    """Rows of single images, of both routes, and of mixtures by attack, size and share.

    `near` is the defence where its networks compute; batches are judged by the one on the CPU. `others` are images attacked
    otherwise than by PGD on the bare classifier.
    """
    draw, order = generator(0, "blame study", device=near.detector.reference_pixels.device), generator(0, "blame order")
    clean = Kind(near, data.images, data.labels, draw)
    threshold, count = defense.threshold(1), len(data)
    singles, mixtures, routes = [_rate("clean", clean.scores >= threshold)], [], [_on_routes("clean", clean)]
    for eps, images in attacked.items():
        budget = round(255 * eps)
        bad = Kind(near, images, data.labels, draw)
        singles.append(_rate(f"{budget}/255", bad.scores >= threshold))
        if budget in MIXED:
            routes.append(_on_routes(f"PGD {budget}/255", bad))
        for size in SIZES if budget in MIXED else ():
            for share in SHARES:
                batches = [batch for _ in range(ROUNDS) for batch in partition(count, size, order)]
                row = mixed(defense, clean, bad, batches, max(1, round(share * size)))
                mixtures.append({"attack": f"PGD {budget}/255", "size": size, "share": share, **row})
    for name, images in others.items():
        bad = Kind(near, images, data.labels, draw)
        routes.append(_on_routes(name, bad))
        for share in SHARES if name == ALGORITHM_3 else ():
            blocks = [block for _ in range(ROUNDS) for block in torch.arange(count).split(SIZE)]
            batches = [block[torch.randperm(SIZE, generator=order)] for block in blocks]
            row = mixed(defense, clean, bad, batches, round(share * SIZE))
            mixtures.append({"attack": name, "size": SIZE, "share": share, **row})
    return {"images": count, "rounds": ROUNDS, "single": singles, "routes": routes, "mixtures": mixtures}


def _on_routes(name: str, kind: Kind) -> dict[str, Any]:
    return {
        "images": name,
        "bare": _mean(kind.bare),
        "flagged route": _mean(kind.rescued(1)),
        "mean of 8 draws": _mean(kind.rescued(AVERAGED)),
    }


def _rate(name: str, hits: Tensor) -> dict[str, Any]:
    return {"images": name, "flagged": _mean(hits), "interval": wilson(int(hits.sum()), len(hits))}


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


def mixed(defense: tp.Defense, clean: Kind, bad: Kind, batches: list[Tensor], many: int) -> dict[str, Any]:
    """Batches whose first `many` images are attacked. Recall and false blame are over flagged batches, accuracy over all."""
    size = len(batches[0])
    attacked = torch.arange(size) < many
    counts = dict.fromkeys(("flagged", "found", "blamed", "batch", "suspects"), 0)
    for batch in batches:
        pick = partial(_picked, clean, bad, batch, attacked)
        seen = Sample(pick(lambda kind: kind.seen.pixels), pick(lambda kind: kind.seen.features))
        flagged, suspects, right = by_rescue(
            defense, seen, pick(lambda kind: kind.bare), lambda draws, pick=pick: pick(lambda kind: kind.rescued(draws))
        )
        counts["flagged"] += flagged
        counts["found"] += int((suspects & attacked).sum())
        counts["blamed"] += int((suspects & ~attacked).sum())
        for rescue, hits in right.items():
            counts[rescue] += int(hits.sum())
    images, flagged = len(batches) * size, counts["flagged"]
    innocent = flagged * (size - many)
    return {
        "flagged": flagged / len(batches),
        "recall": counts["found"] / (flagged * many) if flagged else None,
        "false_blame": counts["blamed"] / innocent if innocent else None,
        "accuracy_batch": counts["batch"] / images,
        "accuracy_suspects": counts["suspects"] / images,
    }


def _picked(clean: Kind, bad: Kind, batch: Tensor, attacked: Tensor, part: Callable[[Kind], Tensor]) -> Tensor:
    return chosen(attacked, part(bad)[batch], part(clean)[batch])


def chosen(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(mask.view(-1, *[1] * (yes.ndim - 1)), yes, no)


def craft(defense: tp.Defense, data: Labelled, work: Path, budgets: Iterable[float]) -> dict[float, Tensor]:
    """The images attacked by PGD on the bare classifier, by budget, each made once."""
    return {
        eps: kept(
            work / f"pgd-{eps * 255:g}-{len(data)}", lambda eps=eps: pgd(defense.classifier, data, PGD(eps=eps, steps=10))
        )
        for eps in budgets
    }


def kept(file: Path, make: Callable[[], Tensor]) -> Tensor:
    """What `make` makes, made once."""
    file = file.with_name(f"{file.name}.safetensors")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(file, {"images": make().cpu()})
    return load_tensors(file)[0]["images"]


def pgd(classifier: nn.Module, data: Labelled, attack: PGD) -> Tensor:
    draw = torch.Generator(data.images.device).manual_seed(1)
    parts = zip(data.images.split(100), data.labels.split(100), strict=True)
    return torch.cat([attack(classifier, x, y, draw).images for x, y in parts])


def algorithm_3(defense: tp.Defense, data: Labelled, steps: int, work: Path, part: tuple[int, int] = (1, 1)) -> Tensor:
    """The paper's attack on the whole defence, each batch made once; it computes in bf16 on a GPU. Of a part its batches."""
    device, attack = data.images.device, ATTACKS["paper"](eps=BUDGETS[0] / 255, steps=steps)
    quick = accelerated(defense, "bf16" if device.type == "cuda" else "fp32", data.images)
    batches = list(zip(data.images.split(SIZE), data.labels.split(SIZE), strict=True))

    def made(number: int) -> Tensor:
        return attack(quick, *batches[number], generator(0, ALGORITHM_3, number, device=device)).images

    mine = range(part[0] - 1, len(batches), part[1])
    return torch.cat([kept(work / f"paper-{steps}-{number}", partial(made, number)) for number in mine])


def markdown(found: dict[str, Any], bundle: str) -> str:
    """The tables."""
    lines = [
        f"# Who in the batch: {bundle}",
        "",
        f"{found['images']} CIFAR-10 test images, {found['rounds']} partitions. PGD takes 10 steps on the bare classifier;",
        "its attacker does not know the defence. Algorithm 3 attacks whole batches, which are diluted. Recall and false",
        "blame are over the images of flagged batches; accuracy is over all images, with the whole flagged batch on the",
        "flagged route (`batch`) or only its suspects.",
        "",
        "| images | bare | flagged route | mean of 8 draws |",
        "|---|---:|---:|---:|",
        *(
            f"| {row['images']} | {row['bare']:.1%} | {row['flagged route']:.1%} | {row['mean of 8 draws']:.1%} |"
            for row in found["routes"]
        ),
        "",
        "| single images | flagged (95 %) |",
        "|---|---|",
        *(
            f"| {row['images']} | {row['flagged']:.1%} ({row['interval'][0]:.1%} to {row['interval'][1]:.1%}) |"
            for row in found["single"]
        ),
        "",
        "| attack | batch size | attacked | flagged | recall | false blame | accuracy, `batch` | accuracy, `suspects` |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    names = ("flagged", "recall", "false_blame", "accuracy_batch", "accuracy_suspects")
    for row in found["mixtures"]:
        cells = ("-" if row[name] is None else f"{row[name]:.1%}" for name in names)
        lines.append(f"| {row['attack']} | {row['size']} | {row['share']:.0%} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *origin(found["made"])])


def made(command: str) -> dict[str, str]:
    """Where numbers come from."""
    asked = ["git", "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or os.environ.get(
        "TWOPRONG_COMMIT"
    )
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {platform.machine()}"
    return {"commit": commit, "torch": torch.__version__, "machine": machine, "command": command}


def origin(made: dict[str, str]) -> list[str]:
    """The same as lines at the end of a page."""
    return [f"Commit {made['commit']}, torch {made['torch']}, {made['machine']}.", "", f"    {made['command']}", ""]


def publish(found: dict[str, Any], page: str, out: str) -> None:
    for end, text in (("json", json.dumps(found, indent=1) + "\n"), ("md", page)):
        write_atomic(Path(f"{out}.{end}"), lambda file, text=text: file.write_text(text, encoding="utf-8"))


def main(given: argparse.Namespace) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    defense, data = tp.load(given.bundle), load_data("cifar10", given.root).test[:COUNT]
    near, there, work = copy.deepcopy(defense).to(device), data.to(device), Path(f"{given.out}-work")
    if given.part is not None:
        algorithm_3(near, there, given.algorithm_3, work, given.part)
        return
    attacked = craft(near, there, work, [budget / 255 for budget in BUDGETS])
    command, others = f"python tools/blame.py {given.bundle} CIFAR_ROOT {given.out}", {}
    if given.surrogate is not None:
        classifier = tp.load(given.surrogate, device=device).classifier
        longer = PGD(eps=BUDGETS[0] / 255, steps=100)
        others[f"PGD-100 on a {classifier.spec.name}"] = kept(work / "transferred", lambda: pgd(classifier, there, longer))
        command += f" --surrogate {given.surrogate}"
    if given.algorithm_3:
        others[ALGORITHM_3] = algorithm_3(near, there, given.algorithm_3, work)
    if given.algorithm_3 != 200:
        command += f" --algorithm-3 {given.algorithm_3}"
    found = {**study(defense, near, data, attacked, others), "made": made(command)}
    publish(found, markdown(found, given.bundle), given.out)
    batch = shown(defense, attacked[BUDGETS[0] / 255][:SHOWN], data.images[SHOWN:100], generator(0, "blame picture"))
    if batch is not None:
        picture = drawn(batch).replace('style="', 'style="background:#fff;color:#222;', 1)
        write_atomic(Path(f"{given.out}.svg"), lambda file: file.write_text(picture + "\n", encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("root", type=Path)
    parser.add_argument("out")
    parser.add_argument("--surrogate")
    parser.add_argument("--algorithm-3", type=int, default=200)
    parser.add_argument("--part", type=lambda text: tuple(int(word) for word in text.split("/")))
    try:
        main(parser.parse_args())
    except TwoprongError as error:
        sys.exit(f"error: {error}")

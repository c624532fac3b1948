"""What attackers who know of suspects gain: python tools/rescue.py BUNDLE CIFAR_ROOT OUT

`rescue = "suspects"` lets images of a flagged batch pass that `rescue = "batch"` would denoise. Here attackers use that.
They own a share of each batch of 100; the rest are other people's clean images. Held-out training images (the bundle's
calibration part, of which the networks have learned nothing) are attacked one by one, some with the score of blame and the
witness in the loss (`attacks/unblamed.py`), Algorithm 3 in batches. An attacker sends all of his images attacked, or only
the best hidden ones, whichever leaves less of his right. OUT.json and OUT.md are written; attacked images stay in OUT-work.

    --test    on test images instead    --images N       attacked (200)
    --steps N    of an attack (30)      --budgets N ...    of 255 (8 2 1)
"""

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from blame import Kind, by_rescue, chosen, made, origin, publish
from torch import Tensor

import twoprong as tp
from twoprong.attacks import ATTACKS, PGD
from twoprong.attacks.unblamed import SHARES as SENT
from twoprong.attacks.unblamed import Unblamed
from twoprong.data import Labelled, load_data
from twoprong.data.splits import split
from twoprong.detect.kernel import Sample
from twoprong.errors import TwoprongError
from twoprong.seeds import generator
from twoprong.storage import load_tensors, save_tensors

SHARES = (0.1, 0.2, 0.3, 0.5, 1.0)
SIZE, BATCHES = 100, 10  # of a batch, and how many at each share
OTHERS = 500  # clean images
CHUNK = 50  # images at a time
DRAWS = 1  # of the noise in a step of Algorithm 3
# What is in the loss of an attack on the bare classifier: weights on the score and on the witness.
HIDING = {
    "score": ((1.0, 0.0), (10.0, 0.0)),
    "witness": ((0.0, 1.0), (0.0, 10.0), (0.0, 100.0)),
    "score and witness": ((1.0, 1.0), (10.0, 10.0), (10.0, 100.0)),
}
LOUD = (-10.0, 0.0)  # asks to be blamed: for images that only the flagged route gets wrong
Found = dict[str, list[tuple[Tensor, Tensor]]]  # by attack: attacked images, and how badly each is hidden


class Once(tp.Defense):
    """A defence that passes images through its network once, however many questions an attack asks about them."""

    kept: list[tuple[Tensor, tuple[Tensor, Tensor]]]

    def look_at(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = next((value for seen, value in self.kept if seen is images), None)
        if found is None:
            found = self.extractor(images)
            self.kept = [*self.kept[-1:], (images, found)]
        return found

    def embed(self, images: Tensor) -> Tensor:
        return self.look_at(images)[1]

    def logits(self, images: Tensor, route: Any = None, draws: int = 1, generator: torch.Generator | None = None) -> Tensor:
        return self.look_at(images)[0][None] if route == "passing" else super().logits(images, route, draws, generator)


def craft(defense: tp.Defense, data: Labelled, eps: float, steps: int, work: Path) -> Found:
    """Every attack's images, each made once."""
    device = defense.detector.reference_pixels.device
    target, data = Once(**vars(defense.parts)), data.to(device)
    found: Found = {}
    for kind, weights in {"pgd": (None,), **HIDING, "loud": (LOUD,), "algorithm 3": (None,)}.items():
        found[kind] = []
        for weight in weights:
            name = f"{kind.replace(' ', '-')}-{weight}-{eps * 255:g}-{steps}-{len(data)}".replace(" ", "")
            file = work / f"{name}.safetensors"
            if not file.exists():
                draw, parts = generator(0, name, device=data.images.device), []
                size = SIZE if kind == "algorithm 3" else CHUNK
                for x, y in zip(data.images.split(size), data.labels.split(size), strict=True):
                    target.kept = []
                    if kind == "algorithm 3":
                        made = ATTACKS["paper"](eps=eps, steps=steps, draws=DRAWS)(defense, x, y, draw).images
                        parts.append((made, torch.zeros(len(x), device=device)))
                    elif weight is None:
                        made = PGD(eps=eps, steps=steps)(defense.classifier, x, y, draw).images
                        parts.append((made, torch.zeros(len(x), device=device)))
                    else:
                        attack = Unblamed(eps=eps, steps=steps)
                        last, hidden, cost = attack.hide(target, x, y, *weight, draw)
                        parts.append((last if kind == "loud" else hidden, cost))
                work.mkdir(parents=True, exist_ok=True)
                images, cost = (torch.cat(both).cpu() for both in zip(*parts, strict=True))
                save_tensors(file, {"images": images, "cost": cost})
                print(name, flush=True)
            kept = load_tensors(file)[0]
            found[kind].append((kept["images"], kept["cost"]))
    loud = found.pop("loud")[0][0]
    split = [(torch.where(cost.isfinite()[:, None, None, None], hidden, loud), cost) for hidden, cost in found["score"]]
    return {**found, "score, the rest loud": split}


MODES = ("batch", "suspects")
COLUMNS = ("attacked", "others", "flagged")
Outcome = tuple[float, float, float]  # shares of the attacker's images and of the others that are right; whether flagged


def study(
    defense: tp.Defense, mine: Kind, attacks: dict[str, list[tuple[Kind, Tensor]]], others: Kind
) -> list[dict[str, Any]]:
    """A row per share and attack, and one for the best of all: by rescue, what its attacker leaves right."""
    rows = []
    for share in SHARES:
        many, draw = round(share * SIZE), generator(0, "rescue", share)
        best: dict[str, list[dict[str, Outcome]]] = {name: [] for name in (*attacks, "the best of all")}
        for _ in range(BATCHES):
            own = torch.randperm(len(mine.labels), generator=draw)[:many]
            rest = torch.randperm(len(others.labels), generator=draw)[: SIZE - many]
            for name, versions in attacks.items():
                tried = [
                    outcome(defense, mine, bad, others, own, rest, own[cost[own].argsort()][: max(1, round(sent * many))])
                    for bad, cost in versions
                    for sent in SENT
                ]
                best[name].append({mode: min(one[mode] for one in tried) for mode in MODES})
            found = [best[name][-1] for name in attacks]
            best["the best of all"].append({mode: min(one[mode] for one in found) for mode in MODES})
        for name, batches in best.items():
            row: dict[str, Any] = {"share": share, "attack": name}
            for mode in MODES:
                values = torch.tensor([one[mode] for one in batches], dtype=torch.double).mean(0).tolist()
                row |= {
                    f"{what}, {mode}": value for what, value in zip(("attacked", "others", "flagged"), values, strict=True)
                }
            rows.append(row)
    return rows


def outcome(
    defense: tp.Defense, mine: Kind, bad: Kind, others: Kind, own: Tensor, rest: Tensor, sent: Tensor
) -> dict[str, Outcome]:
    """What becomes of a batch by rescue; the slots `own` are the attacker's, and of these only the `sent` are attacked."""
    attacked, many = torch.isin(own, sent), len(own)

    def batch(part: Callable[[Kind], Tensor]) -> Tensor:
        return torch.cat([chosen(attacked, part(bad)[own], part(mine)[own]), part(others)[rest]])

    seen = Sample(batch(lambda kind: kind.seen.pixels), batch(lambda kind: kind.seen.features))
    bare = batch(lambda kind: kind.bare)
    flagged, _, right = by_rescue(defense, seen, bare, lambda draws: batch(lambda kind: kind.rescued(draws)))
    return {mode: (*(_mean(part) for part in hits.tensor_split([many])), float(flagged)) for mode, hits in right.items()}


def _mean(values: Tensor) -> float:
    return values.double().mean().item() if len(values) else 1.0


def markdown(found: dict[str, Any], bundle: str) -> str:
    """The tables."""
    lines = [
        f"# What attackers who know of suspects gain: {bundle}",
        "",
        f"{found['attacked images']} {found['images are']} were attacked one by one ({found['steps']} steps), then",
        f"mixed with clean images of the same kind ({found['clean images']}) into {BATCHES} batches of {SIZE} a share.",
        "`batch` and `suspects` are kinds of rescue. For each, the attacker chooses the weights in his loss and how many of",
        "his images he attacks. The table shows what is right then, of his images and of the others.",
        "",
        "| budget | attacker owns | attack | left of his, `batch` | `suspects` | others, `batch` | `suspects` | flagged |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        cells = [row[f"{what}, {mode}"] for what in ("attacked", "others") for mode in MODES]
        text = " | ".join("-" if what > 1 and row["share"] == 1 else f"{cell:.1%}" for what, cell in enumerate(cells))
        lines.append(f"| {row['eps']} | {row['share']:.0%} | {row['attack']} | {text} | {row['flagged, suspects']:.0%} |")
    return "\n".join([*lines, "", *origin(found["made"])])


def main(given: argparse.Namespace) -> None:
    defense, data = tp.load(given.bundle), load_data("cifar10", given.root)
    part = data.test if given.test else split(data.train, defense.config.splits, defense.config.seed).calibration
    few, rest = part[: given.images], part[given.images : given.images + OTHERS]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    near = copy.deepcopy(defense).to(device)  # for networks; batches are judged on the CPU
    draw, budgets = generator(0, "rescue study", device=device), " ".join(map(str, given.budgets))
    options = f"--images {given.images} --steps {given.steps} --budgets {budgets}" + " --test" * given.test
    mine, others = (Kind(near, some.images, some.labels, draw) for some in (few, rest))
    found: dict[str, Any] = {
        "attacked images": len(few),
        "clean images": len(rest),
        "images are": "test images" if given.test else "held-out training images",
        "steps": given.steps,
        "rows": [],
        "made": made(f"python tools/rescue.py {given.bundle} CIFAR_ROOT {given.out} {options}"),
    }
    for budget in given.budgets:
        crafted = craft(near, few, budget / 255, given.steps, Path(f"{given.out}-work"))
        attacks = {
            name: [(Kind(near, images, few.labels, draw), cost) for images, cost in versions]
            for name, versions in crafted.items()
        }
        found["rows"] += [{"eps": f"{budget}/255", **row} for row in study(defense, mine, attacks, others)]
        publish(found, markdown(found, given.bundle), given.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("root", type=Path)
    parser.add_argument("out")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 2, 1], help="of 255")
    try:
        main(parser.parse_args())
    except TwoprongError as error:
        sys.exit(f"error: {error}")

"""The clean / robust curve of a gate between an accurate network A and a robust one R, on held-out training images.

    python tools/gate_curve.py --data DIR --accurate A/best.safetensors --robust R/best.safetensors --out gate.json

R's smallest reachable margin is looked for by the search of twoprong.robust.gate and by APGD (CE, DLR, targeted), in bf16 on
a GPU, and read off in float32. The images are the calibration part of the training images: neither network learned from it.
The curve gives A away. With --tau 0.1 (repeatable) the gate itself is attacked there: it holds more if A is not helpless.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from twoprong.attacks.apgd import APGD, APGDDLR, APGDT
from twoprong.attacks.gate import ORDERS, Gate
from twoprong.attacks.target import Hurdle, Plain, Role
from twoprong.config import SplitConfig, as_number
from twoprong.data import Labelled, load_data, split
from twoprong.errors import TwoprongError
from twoprong.models.fast import fast
from twoprong.robust.gate import SCORES, Margins, Smallest, curve, descend, joined, operating_point, read
from twoprong.robust.run import load_weights
from twoprong.routes import Gated
from twoprong.seeds import generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--accurate", required=True, type=Path)
    parser.add_argument("--robust", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path, help="the JSON file; margins go beside it as .safetensors")
    parser.add_argument("--eps", type=as_number, default=8 / 255)
    parser.add_argument("--steps", type=int, default=50, help="of each search (APGD: twice that)")
    parser.add_argument("--tau", type=float, action="append", default=[], help="attack the gate with this threshold")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=1000)
    arguments = parser.parse_args()
    began = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.allow_tf32 = False  # float32 means float32 here
    part = split(load_data("cifar10", arguments.data).train, SplitConfig(), 0).calibration[: arguments.images].to(device)
    accurate, robust = (load_weights(path).to(device) for path in (arguments.accurate, arguments.robust))
    quick = fast(robust, None) if device.type == "cuda" else robust
    pieces = []
    for start in range(0, len(part), arguments.batch):
        batch = part[start : start + arguments.batch]
        draw = generator(0, "gate", start, device=device)
        found = Smallest(batch.images, batch.labels, SCORES)
        descend(quick, batch.images, batch.labels, arguments.eps, arguments.steps, found, draw)
        for attack in (APGD, APGDDLR, APGDT):
            images = attack(eps=arguments.eps, steps=2 * arguments.steps)(quick, batch.images, batch.labels, draw).images
            with torch.no_grad():
                found.offer(images, quick(images))
        pieces.append(read(robust, accurate, batch.images, found))
        print(f"{time.time() - began:6.1f} s  {start + len(batch)} of {len(part)} images", flush=True)
    margins = joined(pieces)
    curves = {name: curve(one) for name, one in margins.items()}
    alone = operating_point(margins["logits"], 0.0)
    result = {
        "images": len(part),
        "eps": arguments.eps,
        "robust alone": asdict(alone),
        "accurate clean": float(margins["logits"].accurate_right.double().mean()),
        "curves": {name: [asdict(point) for point in points] for name, points in curves.items()},
        "margins": {name: {key: value.tolist() for key, value in vars(one).items()} for name, one in margins.items()},
    }
    result["attacked"] = attacked(accurate, robust, part, margins["p, T=1"], arguments)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result))
    print(f"R alone {alone.clean:.1%} / {alone.robust:.1%}, A {result['accurate clean']:.1%} clean, {len(part)} images")
    for name, points in curves.items():
        print(f"{name:>10}: " + ", ".join(f"τ {p.tau:.3g} {p.clean:.1%}/{p.robust:.1%}" for p in points[1::4]))


class Alone(Plain):
    """A gate without a test, as a target."""

    def __init__(self, gate: Gated) -> None:
        super().__init__(gate.classify)
        self.gate = gate

    def hurdles(
        self, images: Tensor, labels: Tensor, route: Role = "passing", generator: torch.Generator | None = None
    ) -> list[Hurdle]:
        return self.gate.hurdles(images, labels)


def attacked(
    accurate: nn.Module, robust: nn.Module, part: Labelled, margins: Margins, arguments: argparse.Namespace
) -> list[dict[str, float]]:
    """The gate under the attack `gate`, for every --tau; images whose smallest margin is well above it are not attacked."""
    quick = [fast(network, None) if part.images.is_cuda else network for network in (accurate, robust)]
    found = []
    for tau in arguments.tau:
        weak = part[(margins.smallest < tau + 0.05).nonzero()[:, 0]]
        attack = Gate(eps=arguments.eps, steps=arguments.steps, targets=5, restarts=len(ORDERS))
        draw = generator(0, "attacked", tau, device=part.images.device)
        images = attack(Alone(Gated(*quick, tau)), weak.images, weak.labels, draw).images
        with torch.no_grad():
            chunks = zip(images.split(500), weak.labels.split(500), strict=True)
            fooled = sum(int((Gated(accurate, robust, tau).classify(x).argmax(1) != y).sum()) for x, y in chunks)
        clean = operating_point(margins, tau).clean
        found.append({"tau": tau, "clean": clean, "robust": 1 - fooled / len(part)})
        print(f"the gate at τ {tau:g}: {clean:.1%} clean, {found[-1]['robust']:.1%} under attack", flush=True)
    return found


if __name__ == "__main__":
    try:
        main()
    except TwoprongError as error:
        sys.exit(f"error: {error}")

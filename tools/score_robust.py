"""Final numbers of trained networks on the CIFAR-10 test images: clean on all of them, AutoAttack `standard` on the first N.

    python tools/score_robust.py --data DIR --weights R/best.safetensors --images 1000 --out score.json

On a GPU the attack computes in bf16 and is scored in float32; images that only bf16 misclassified are attacked once more in
float32, so that no rounding counts as robustness.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from twoprong.attacks.autoattack import AutoAttack
from twoprong.config import as_number
from twoprong.data import load_data
from twoprong.errors import TwoprongError
from twoprong.models.fast import fast
from twoprong.models.train import accuracy
from twoprong.robust.run import load_weights
from twoprong.seeds import generator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--weights", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--images", type=int, default=1000, help="for AutoAttack; 0: clean accuracy only")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--eps", type=as_number, default=8 / 255)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--square-steps", type=int, default=5000)
    arguments = parser.parse_args()
    began = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.allow_tf32 = False  # float32 means float32 here
    test = load_data("cifar10", arguments.data).test.to(device)
    model = load_weights(arguments.weights).to(device)
    quick = fast(model, None) if device.type == "cuda" else model
    attack = AutoAttack(eps=arguments.eps, steps=arguments.steps, square_steps=arguments.square_steps)
    result: dict[str, object] = {
        "weights": str(arguments.weights),
        "clean": accuracy(model, test),
        "clean images": len(test),
    }
    say(began, f"clean {result['clean']:.2%} of {len(test)} test images")
    part = test[: arguments.images]
    found, fooled = [], []
    for start in range(0, len(part), arguments.batch):
        batch = part[start : start + arguments.batch]
        outcome = attack(quick, batch.images, batch.labels, generator(0, "score", start, device=device))
        found.append(outcome.images)
        fooled.append(outcome.success)
        held = 1 - torch.cat(fooled).double().mean().item()
        result |= {"eps": arguments.eps, "autoattack": held, "autoattack images": start + len(batch)}
        arguments.out.write_text(json.dumps(result))
        say(began, f"AutoAttack: {held:.2%} of the first {start + len(batch)} hold")
    if found:
        with torch.no_grad():
            wrong = torch.cat([model(images).argmax(1) for images in found]) != part.labels
        doubtful = torch.cat(fooled) & ~wrong
        if quick is not model and doubtful.any():
            again = attack(model, part.images[doubtful], part.labels[doubtful], generator(1, "score", device=device))
            wrong[doubtful] = again.success
        result |= {"autoattack": 1 - wrong.double().mean().item(), "attacked again": int(doubtful.sum())}
        say(began, f"AutoAttack in float32: {result['autoattack']:.2%} of {len(part)}; {int(doubtful.sum())} attacked again")
    arguments.out.write_text(json.dumps(result | {"seconds": time.time() - began}))


def say(began: float, text: str) -> None:
    print(f"{time.time() - began:6.1f} s  {text}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except TwoprongError as error:
        sys.exit(f"error: {error}")

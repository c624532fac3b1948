"""A hardened CIFAR-10 bundle from an accurate and a robust network that tools/train_robust.py has trained.

    python tools/fit_hardened.py --data DIR --accurate A/best.safetensors --robust R/best.safetensors --out BUNDLE

Both networks have learned from the part of the training images that a fit leaves them. The kernel, the gate's threshold and
the thresholds of the test come from the other parts. Test images are only counted, at the end.
"""

import argparse
import sys
from pathlib import Path

import torch

from twoprong.config import FitConfig
from twoprong.data import load_data
from twoprong.errors import TwoprongError
from twoprong.recipe import fit
from twoprong.robust.run import load_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--accurate", required=True, type=Path)
    parser.add_argument("--robust", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--balance", type=float, default=FitConfig().balance, help="0: all accuracy, 1: all robustness")
    parser.add_argument("--limit", type=int, help="so many training and test images only, for a trial")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = FitConfig.model_validate({"mode": "hardened", "balance": arguments.balance})
    data = load_data("cifar10", arguments.data)
    train, test = data.train[: arguments.limit].to(device), data.test[: arguments.limit].to(device)
    accurate, robust = (load_weights(path).to(device) for path in (arguments.accurate, arguments.robust))
    precision = "bf16" if device.type == "cuda" else "fp32"
    defense = fit(
        accurate, train, config=config, test=test, classes=data.classes, robust=robust, progress=say, precision=precision
    )
    defense.about["data"] = data.name
    defense.save(arguments.out)
    for name, value in defense.about["measured"].items():
        print(f"{name}: {value}")
    print(f"tau: {defense.about['tau']:.4f}")


def say(stage: str, done: int, total: int, note: str = "") -> None:
    if done == total:
        print(f"{stage}: done {note}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except TwoprongError as error:
        sys.exit(f"error: {error}")

"""A hardened CIFAR-10 bundle from an accurate and a robust network that tools/train_robust.py has trained.

    python tools/fit_hardened.py --data DIR --accurate A/best.safetensors --robust R/best.safetensors --out BUNDLE

--accurate may also be a bundle, whose classifier is taken, with the bundle's split of the training images. Both networks are
rounded to eight bits first. Both have learned from the part that a fit leaves them. The kernel, the gate's threshold and the
thresholds of the test come from the other parts. Test images are only counted, at the end.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

import twoprong as tp
from twoprong.config import FitConfig, SplitConfig
from twoprong.data import load_data
from twoprong.errors import InputError, TwoprongError
from twoprong.models.compact import compact
from twoprong.recipe import fit
from twoprong.robust.run import load_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--accurate", required=True, help="weights of tools/train_robust.py, or a bundle")
    parser.add_argument("--robust", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--balance", type=float, default=FitConfig().balance, help="0: all accuracy, 1: all robustness")
    parser.add_argument("--limit", type=int, help="so many training and test images only, for a trial")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_data("cifar10", arguments.data)
    train, test = data.train[: arguments.limit].to(device), data.test[: arguments.limit].to(device)
    accurate, splits = network_and_splits(arguments.accurate)
    accurate, robust = (compact(network).to(device) for network in (accurate, load_weights(arguments.robust)))
    config = FitConfig(mode="hardened", balance=arguments.balance, splits=splits)
    precision = "bf16" if device.type == "cuda" else "fp32"
    defense = fit(
        accurate, train, config=config, test=test, classes=data.classes, robust=robust, progress=say, precision=precision
    )
    defense.about["data"] = data.name
    defense.save(arguments.out)
    for name, value in defense.about["measured"].items():
        print(f"{name}: {value}")
    print(f"tau: {defense.about['tau']:.4f}")


def network_and_splits(given: str) -> tuple[nn.Module, SplitConfig]:
    """A network and the split it was trained with. Raises InputError where R has learned images that the split holds out."""
    trained = SplitConfig()  # what tools/train_robust.py leaves out
    if Path(given).is_file():
        return load_weights(Path(given)), trained
    bundle = tp.load(given)
    splits = bundle.config.splits
    if sum(splits.model_dump().values()) > sum(trained.model_dump().values()):
        raise InputError(f"--accurate {given}: R has learned images that this bundle holds out; train R with the same split")
    return bundle.classifier, splits


def say(stage: str, done: int, total: int, note: str = "") -> None:
    if done == total:
        print(f"{stage}: done {note}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except TwoprongError as error:
        sys.exit(f"error: {error}")

"""Makes the bundle that tools/ship.py puts into the package: python tools/fit_small.py CIFAR_ROOT OUT

A WRN-16-3 is trained, rounded to eight bits, and the defence fitted around what is left of it, with the settings of
configs/cifar10-small.toml. On an H200 it takes a few minutes, on a CPU most of a day.
"""

import sys
from pathlib import Path

import torch

from twoprong.config import load_config
from twoprong.data import load_data
from twoprong.errors import TwoprongError
from twoprong.models.compact import compact
from twoprong.models.train import accuracy
from twoprong.progress import Progress
from twoprong.recipe import fit, train_named

CLASSIFIER = "wrn-16-3"
SETTINGS = Path(__file__).parents[1] / "configs" / "cifar10-small.toml"


def fit_small(root: Path, out: Path, progress: Progress) -> None:
    config = load_config(SETTINGS)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = "bf16" if device.type == "cuda" else "fp32"
    data = load_data("cifar10", root).to(device)
    work = out.with_name(f"{out.name}-work")
    classifier = train_named(
        CLASSIFIER, data.train, len(data.classes), config, work, resume=True, progress=progress, precision=precision
    )
    compact(classifier)
    print(f"{accuracy(classifier, data.test):.2%} of the test images are classified correctly", flush=True)
    defense = fit(
        classifier,
        data.train,
        config=config,
        test=data.test,
        classes=data.classes,
        work=work,
        resume=True,
        progress=progress,
        precision=precision,
    )
    defense.about["data"] = data.name
    defense.save(out)


def show(stage: str, done: int, total: int, note: str = "") -> None:
    if done == total or done % 10 == 0:
        print(f"{stage}: {done} of {total} {note}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        fit_small(Path(sys.argv[1]), Path(sys.argv[2]), show)
    except TwoprongError as error:
        sys.exit(f"error: {error}")

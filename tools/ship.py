"""Puts a fitted bundle into the package as `cifar10-small`: python tools/ship.py BUNDLE CIFAR_ROOT

`python tools/ship.py` alone writes what the published evaluations of it say (results/cifar10-small-*) into its model card.

Fit it around a classifier that was rounded to half precision first. The denoiser is rounded here: no threshold depends on
it. Beside the bundle go the first test images of CIFAR-10. Together they may take 12 MB.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import twoprong as tp
from twoprong import shipped
from twoprong.data import ImageData, Labelled, load_data
from twoprong.data.tensors import image_digests
from twoprong.errors import InputError, TwoprongError
from twoprong.evaluation.protocols import PROTOCOLS
from twoprong.models.train import accuracy
from twoprong.storage import save_tensors

NAME = "cifar10-small"
TEST_IMAGES = 500
MOST_BYTES = 12_000_000
RESULTS = Path(__file__).parents[1] / "results"


def ship(bundle: Path, data: ImageData, home: Path = shipped.HOME, most: int = MOST_BYTES) -> tp.Defense:
    """Write bundle and test images to `home`, or nothing: raises InputError for what should not go out."""
    defense, test = tp.load(bundle), data.test[:TEST_IMAGES]
    lost = [name for name, value in floats(defense.classifier) if not torch.equal(value.half().float(), value)]
    if lost:
        raise InputError(
            f"{bundle}: expected a classifier of half-precision numbers, {len(lost)} tensors lose bits ({lost[0]}, ...); "
            "round its weights first, then fit"
        )
    known = torch.cat([image_digests(defense.reference_images()), defense.detector.calibrated_on])
    if torch.isin(image_digests(test.images), known).any():
        raise InputError(f"{bundle}: test images are in its reference, or it was calibrated on them; fit on others")
    with torch.no_grad():
        for name, value in floats(defense.flagged.denoiser):
            value.copy_(value.half())
            if not value.isfinite().all():
                raise InputError(f"{bundle}: the denoiser's {name} has numbers too large for half precision")
    defense.about |= {"classes": list(data.classes), "rounded": "classifier and denoiser, to half precision"}
    with tempfile.TemporaryDirectory() as folder:
        size = write(defense, test, Path(folder))
    if size > most:
        raise InputError(
            f"{bundle}: expected at most {most:,} bytes with its test images, got {size:,}; use narrower networks"
        )
    write(defense, test, home)
    return defense


def state(results: Path, home: Path = shipped.HOME) -> dict[str, str]:
    """Write into the packaged bundle's card what was published about it; every run with its command."""
    said = {}
    for protocol in PROTOCOLS:
        file = results / f"{NAME}-{protocol}" / "results.json"
        if file.is_file():
            found = json.loads(file.read_text(encoding="utf-8"))
            run, worst, clean = found["run"], found["worst_case"]["defense"], found["clean"]["subjects"]
            low, high = worst["per_batch_interval"]
            failed = [check["name"] for check in found["sanity"] if check["status"] == "failed"]
            not_converged = any(check["status"] == "not converged" for check in found["sanity"])
            said[f"`{run['command']}`"] = (
                f"{found['clean']['images']} clean images: {clean['bare']['accuracy']:.1%} bare, "
                f"{clean['defense']['accuracy']:.1%} defended; {run['images']} attacked in batches of {run['batch_size']}, "
                f"{run['norm']} {run['eps']:.4g}: in the worst case {worst['per_batch']:.1%} ({low:.1%} to {high:.1%})"
                + ", an upper bound: not every attack had converged" * not_converged
                + f"; sanity checks failed: {', '.join(failed)}" * bool(failed)
            )
    if not said:
        raise InputError(f"{results}: expected {NAME}-{' or -'.join(PROTOCOLS)} there, got none; publish them first")
    defense = tp.load(home / NAME)
    defense.about["measured"] = said
    defense.save(home / NAME, overwrite=True)
    return said


def floats(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in module.state_dict().items() if value.is_floating_point()]


def write(defense: tp.Defense, test: Labelled, home: Path) -> int:
    """The files in `home`; their bytes together."""
    home.mkdir(parents=True, exist_ok=True)
    bundle, images = home / NAME, home / shipped.images_of(NAME).name
    defense.save(bundle, overwrite=True)
    save_tensors(images, vars(test), packed=True)
    return sum(file.stat().st_size for file in (images, *bundle.iterdir()))


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit(__doc__)
    try:
        if len(sys.argv) == 1:
            state(RESULTS)
            sys.exit()
        cifar10 = load_data("cifar10", Path(sys.argv[2]))
        done = ship(Path(sys.argv[1]), cifar10)
    except TwoprongError as error:
        sys.exit(f"error: {error}")
    right = accuracy(done.classifier, cifar10.test[:TEST_IMAGES])
    print(f"{shipped.HOME / NAME}: the bare classifier reads {right:.1%} of the test images beside it")

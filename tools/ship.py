"""Puts a fitted bundle into the package, as `cifar10-small` or another name: python tools/ship.py BUNDLE CIFAR_ROOT [NAME]

`python tools/ship.py NAME` writes what the published evaluations of that bundle (results/NAME-PROTOCOL) say into its card.

Fit it around networks that were rounded first (twoprong.models.compact). A denoiser is rounded here: no threshold depends on
it. Beside the bundle go the first test images of CIFAR-10. Together they may take 25 MB.
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
from twoprong.models.compact import compact
from twoprong.models.train import accuracy
from twoprong.parts import stored_networks
from twoprong.routes import Denoised
from twoprong.storage import packing, save_tensors

NAME = "cifar10-small"
TEST_IMAGES = 500
MOST_BYTES = 25_000_000
RESULTS = Path(__file__).parents[1] / "results"


def ship(bundle: Path, data: ImageData, home: Path = shipped.HOME, most: int = MOST_BYTES, name: str = NAME) -> tp.Defense:
    """Write bundle and test images to `home`, or nothing: raises InputError for what should not go out."""
    defense, test = tp.load(bundle), data.test[:TEST_IMAGES]
    denoiser = defense.flagged.denoiser if isinstance(defense.flagged, Denoised) else None
    kept = [network for network in stored_networks(defense.parts).values() if network is not denoiser]
    lost = [tensor for network in kept for tensor, value in floats(network) if packing(value) is None]
    if lost:
        raise InputError(
            f"{bundle}: expected networks that can be stored in one or two bytes a number, {len(lost)} tensors lose bits "
            f"({lost[0]}, ...); round their weights first, then fit"
        )
    known = torch.cat([image_digests(defense.reference_images()), defense.detector.calibrated_on])
    if torch.isin(image_digests(test.images), known).any():
        raise InputError(f"{bundle}: test images are in its reference, or it was calibrated on them; fit on others")
    if denoiser is not None:
        for tensor, value in floats(compact(denoiser)):
            if not value.isfinite().all():
                raise InputError(f"{bundle}: the denoiser's {tensor} has numbers too large for half precision")
    defense.about |= {"classes": list(data.classes), "rounded": "all networks"}
    with tempfile.TemporaryDirectory() as folder:
        size = write(defense, test, Path(folder), name)
    if size > most:
        raise InputError(
            f"{bundle}: expected at most {most:,} bytes with its test images, got {size:,}; use narrower networks"
        )
    write(defense, test, home, name)
    return defense


def state(results: Path, home: Path = shipped.HOME, name: str = NAME) -> dict[str, str]:
    """Write into a packaged bundle's card what was published about it, each run by its command, after what the fit found."""
    said, defense = {}, tp.load(home / name)
    for protocol in PROTOCOLS:
        file = results / f"{name}-{protocol}" / "results.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
        if found is not None and found["run"]["started"] >= defense.about["fitted"]:  # else it was another bundle
            run, worst, clean = found["run"], found["worst_case"]["defense"], found["clean"]["subjects"]
            low, high = worst.get("per_batch_interval_batches") or worst["per_batch_interval"]
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
        raise InputError(
            f"{results}: expected {name}-{' or -'.join(PROTOCOLS)} of this bundle there, got none; publish them first"
        )
    fitted = {key: value for key, value in defense.about.get("measured", {}).items() if not key.startswith("`")}
    defense.about["measured"] = fitted | said
    defense.save(home / name, overwrite=True)
    return said


def floats(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in module.state_dict().items() if value.is_floating_point()]


def write(defense: tp.Defense, test: Labelled, home: Path, name: str) -> int:
    """The files in `home`; their bytes together."""
    home.mkdir(parents=True, exist_ok=True)
    bundle, images = home / name, home / shipped.images_of(NAME).name
    defense.save(bundle, overwrite=True)
    save_tensors(images, vars(test), packed=True)
    return sum(file.stat().st_size for file in (images, *bundle.iterdir()))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    try:
        if len(sys.argv) == 2:
            state(RESULTS, name=sys.argv[1])
            sys.exit()
        cifar10 = load_data("cifar10", Path(sys.argv[2]))
        name = sys.argv[3] if len(sys.argv) == 4 else NAME
        done = ship(Path(sys.argv[1]), cifar10, name=name)
    except TwoprongError as error:
        sys.exit(f"error: {error}")
    right = accuracy(done.classifier, cifar10.test[:TEST_IMAGES])
    print(f"{shipped.HOME / name}: the bare classifier reads {right:.1%} of the test images beside it")

"""The disjoint parts of the training images, so that nothing is judged by what it has learned from."""

from dataclasses import dataclass

import torch

from twoprong.config import SplitConfig
from twoprong.data.tensors import Labelled
from twoprong.errors import InputError
from twoprong.seeds import generator
from twoprong.storage import fingerprint

LEAST = 20  # images a part needs for the statistics to mean anything
LARGEST_SHARE = 5  # no part but the denoiser's takes more than one in five images


@dataclass(frozen=True, eq=False)
class Splits:
    """`denoiser` (and a classifier we train) learns; `kernel` fits the test; `reference` and `calibration` are unseen."""

    denoiser: Labelled
    kernel: Labelled
    reference: Labelled
    calibration: Labelled

    def hashes(self) -> dict[str, str]:
        """A SHA-256 per part over its images and labels, in order: which images were used for what."""
        return {name: fingerprint(part.images, part.labels) for name, part in vars(self).items()}


def split(data: Labelled, config: SplitConfig, seed: int, held_out: Labelled | None = None) -> Splits:
    """Divide images at random into the four parts; a function of the seed and the number of images only.

    With `held_out` (images the classifier was not trained on) reference and calibration come out of it, and nothing else.
    """
    sizes = {name: min(count, len(data) // LARGEST_SHARE) for name, count in config.model_dump().items()}
    order = torch.randperm(len(data), generator=generator(seed, "splits")).to(data.images.device)
    if held_out is None:
        kernel, reference, calibration, rest = order.split(
            [sizes["kernel"], sizes["reference"], sizes["calibration"], len(data) - sum(sizes.values())]
        )
        parts = Splits(data[rest], data[kernel], data[reference], data[calibration])
    else:
        unseen = torch.randperm(len(held_out), generator=generator(seed, "held out")).to(held_out.images.device)
        count = min(config.reference, len(held_out) // 2)
        kernel, rest = order.split([sizes["kernel"], len(data) - sizes["kernel"]])
        calibration = unseen[count:][: config.calibration]
        parts = Splits(data[rest], data[kernel], held_out[unseen[:count]], held_out[calibration])
    small = [f"{name} {len(part)}" for name, part in vars(parts).items() if len(part) < LEAST]
    if held_out is not None and min(len(parts.reference), len(parts.calibration)) < LEAST:
        raise InputError(
            f"held_out: {len(held_out)} are too few to give {LEAST} or more to reference and to calibration (too small: "
            f"{', '.join(small)}); give at least {2 * LEAST} images, or raise splits.*"
        )
    if small:
        raise InputError(
            f"images: {len(data)} are too few to divide into four parts of {LEAST} or more (too small: {', '.join(small)}); "
            f"give at least {LEAST * LARGEST_SHARE} images, or raise splits.*"
        )
    return parts

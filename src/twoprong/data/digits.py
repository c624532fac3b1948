"""The handwritten digits that come with the package: 1,797 images of 8×8 pixels, to try things without a download."""

from importlib import resources

import numpy as np
import torch

from twoprong.data.tensors import ImageData, Labelled

TEST_IMAGES = 400


def load_digits() -> ImageData:
    """The digits as (N, 1, 8, 8) in [0, 1]; always the same 400 of them are `test`."""
    with resources.files("twoprong.data").joinpath("digits.npz").open("rb") as file, np.load(file) as stored:
        images, labels = stored["images"], stored["labels"]
    # The file is ordered by writer. numpy promises never to change RandomState's stream; torch promises no such thing.
    order = np.random.RandomState(1998).permutation(len(images))
    digits = Labelled(
        torch.from_numpy(images[order]).unsqueeze(1).float() / 16,
        torch.from_numpy(labels[order]).long(),
    )
    return ImageData("digits", digits[TEST_IMAGES:], digits[:TEST_IMAGES], tuple("0123456789"))

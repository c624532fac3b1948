"""For `--demo`: images to try the service with, and what PGD on the bare classifier makes of them. In the worker process."""

import base64
from pathlib import Path
from typing import Any

import torch

from twoprong.attacks.pgd import PGD
from twoprong.data import load_data
from twoprong.defense import Defense
from twoprong.errors import ConfigError
from twoprong.serve.review import png
from twoprong.shipped import source_of

COUNT = 8
ATTACKS = {"cifar10-small": PGD(eps=8 / 255, step=2 / 255), "digits": PGD(eps=0.3, step=0.05)}


def samples(defense: Defense, bundle: Path) -> list[dict[str, Any]]:
    """Each: its `class`, an `image` and the same `attacked` (PNG in base64), what the `bare` classifier says of the latter.

    Raises ConfigError for a bundle whose images are not in the package.
    """
    reference = defense.reference_images()
    source = source_of(bundle) or ("digits" if tuple(reference.shape[1:]) == (1, 8, 8) else None)
    if source not in ATTACKS:
        raise ConfigError(
            f"--demo: expected a bundle of the package or of the digits, whose images come along; got {bundle}"
        )
    data = load_data(source)
    test = data.test[:COUNT]
    images, labels = test.images.to(reference.device), test.labels.to(reference.device)
    attacked = (ATTACKS[source](defense.classifier, images, labels).images * 255).round() / 255
    with torch.no_grad():
        bare = defense.classifier(attacked).argmax(1).tolist()
    names = data.classes or tuple(map(str, range(1000)))
    return [
        {"class": names[label], "image": _encoded(image), "attacked": _encoded(changed), "bare": names[answer]}
        for label, image, changed, answer in zip(labels.tolist(), images, attacked, bare, strict=True)
    ]


def _encoded(image: torch.Tensor) -> str:
    return base64.b64encode(png((image * 255).round().byte().permute(1, 2, 0).cpu().numpy())).decode()

"""For `--demo`: images to try the service with, and what PGD on the bare classifier makes of them. In the worker process."""

import base64
from typing import Any

import torch

from twoprong.attacks.pgd import PGD
from twoprong.data import load_data
from twoprong.defense import Defense
from twoprong.errors import ConfigError
from twoprong.serve.review import png

COUNT = 8
KINDS = {"cifar10-small": ((3, 32, 32), PGD(eps=8 / 255, step=2 / 255)), "digits": ((1, 8, 8), PGD(eps=0.3, step=0.05))}


def samples(defense: Defense, name: str) -> list[dict[str, Any]]:
    """Each: its `class`, an `image` and the same `attacked` (PNG in base64), what the `bare` classifier says of the latter.

    Raises ConfigError for a bundle whose images are not in the package.
    """
    shape = tuple(defense.reference_images().shape[1:])
    source = next((kind for kind, (known, _) in KINDS.items() if known == shape), None)
    if source is None or (source == "cifar10-small" and name != source):
        raise ConfigError(
            f"--demo: expected cifar10-small or a bundle of the digits, for their images come along; got {name}"
        )
    some, data = KINDS[source][1], load_data(source)
    test = data.test[:COUNT]
    device = defense.reference_images().device
    images, labels = test.images.to(device), test.labels.to(device)
    attacked = (some(defense.classifier, images, labels).images * 255).round() / 255
    with torch.no_grad():
        bare = defense.classifier(attacked).argmax(1).tolist()
    names = data.classes or tuple(map(str, range(1000)))
    return [
        {"class": names[label], "image": _encoded(image), "attacked": _encoded(changed), "bare": names[answer]}
        for label, image, changed, answer in zip(labels.tolist(), images, attacked, bare, strict=True)
    ]


def _encoded(image: torch.Tensor) -> str:
    return base64.b64encode(png((image * 255).round().byte().permute(1, 2, 0).cpu().numpy())).decode()

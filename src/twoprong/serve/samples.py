"""Images for people to try the service with; for `--demo` also what PGD makes of them. In the worker process."""

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
ATTACKS = {"cifar10-small": PGD(eps=8 / 255, step=2 / 255, steps=10), "digits": PGD(eps=0.3, step=0.05)}


def samples(defense: Defense, bundle: Path, demo: bool) -> list[dict[str, Any]]:
    """Each: its `class` and an `image` (PNG in base64); for a `demo` also the same `attacked`, and what the `bare`
    classifier says of that. A bundle whose images are not in the package has none; a `demo` of it raises ConfigError.
    """
    reference = defense.reference_images()
    source = source_of(bundle) or ("digits" if tuple(reference.shape[1:]) == (1, 8, 8) else None)
    if source not in ATTACKS:
        if demo:
            raise ConfigError(
                f"--demo: expected a bundle of the package or of the digits, whose images come along; got {bundle}"
            )
        return []
    data = load_data(source)
    test = data.test[:COUNT]
    names = data.classes or tuple(map(str, range(1000)))
    pairs = zip(test.labels.tolist(), test.images, strict=True)
    found = [{"class": names[label], "image": _encoded(image)} for label, image in pairs]
    if not demo:
        return found
    images, labels = test.images.to(reference.device), test.labels.to(reference.device)
    attacked = (ATTACKS[source](defense.classifier, images, labels).images * 255).round() / 255
    with torch.no_grad():
        bare = defense.classifier(attacked).argmax(1).tolist()
    return [
        one | {"attacked": _encoded(changed), "bare": names[answer]}
        for one, changed, answer in zip(found, attacked, bare, strict=True)
    ]


def _encoded(image: torch.Tensor) -> str:
    return base64.b64encode(png((image * 255).round().byte().permute(1, 2, 0).cpu().numpy())).decode()

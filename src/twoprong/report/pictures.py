"""Pictures for the report: what an attack does to images, and what the denoiser makes of them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from twoprong.data.tensors import Labelled
from twoprong.defense import Defense
from twoprong.results.evaluation import Picture
from twoprong.seeds import generator

SHOWN = 8  # images a strip


@torch.no_grad()
def strips(defense: Defense, clean: Labelled, attacked: Mapping[str, Tensor], seed: int) -> list[Picture]:
    """The first images of the first batch under every attack, and their labels."""
    from twoprong.report.figures import picture  # only who makes pictures pays for the import

    found = []
    for name, images in attacked.items():
        bad = images[:SHOWN].to(clean.images.device)
        good = clean.images[: len(bad)]
        rows = {
            "clean": good,
            "adversarial": bad,
            "difference": (0.5 + 10 * (bad - good)).clamp(0, 1),
        }
        restored = defense.restored(bad, "flagged", 1, generator(seed, "strips", device=bad.device))
        if restored is not bad:
            rows["denoised"] = restored
        says = {row: defense.classifier(x).argmax(1).tolist() for row, x in rows.items() if row != "difference"}
        for number, label in enumerate(clean.labels[: len(bad)].tolist()):
            found.append(
                Picture(
                    attack=name,
                    label=label,
                    images={row: picture(x[number]) for row, x in rows.items()},
                    says={row: values[number] for row, values in says.items()},
                )
            )
    return found

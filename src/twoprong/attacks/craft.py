"""Training examples for the defence: crafted once, kept on disk under a key of everything they depend on."""

from pathlib import Path

import torch
from torch import Tensor, nn

from twoprong.attacks.base import REVISION
from twoprong.attacks.mma import MMA
from twoprong.config import AttackConfig
from twoprong.data.tensors import Labelled
from twoprong.progress import Progress, silent
from twoprong.storage import fingerprint, load_tensors, save_tensors


def craft(
    classifier: nn.Module,
    data: Labelled,
    config: AttackConfig,
    cache: Path | None = None,
    progress: Progress = silent,
    stage: str = "craft",
) -> Tensor:
    """The adversarial counterpart (MMA) of every image, in order.

    With `cache`, every finished chunk is a file of its own in a folder named after the classifier's weights, the images,
    the labels, the settings and the attacks' revision: a killed run goes on where it stopped, and a changed ingredient never
    meets an old file.
    """
    attack = MMA(eps=config.eps, norm=config.norm, step=config.step, steps=config.steps, targets=config.targets)
    folder = None
    if cache is not None:
        key = fingerprint(classifier, data.images, data.labels, config.model_dump(), REVISION)
        folder = cache / f"crafted-{key[:32]}"
        folder.mkdir(parents=True, exist_ok=True)
    chunks = []
    starts = range(0, len(data), config.batch_size)
    for number, start in enumerate(starts):
        part = data[start : start + config.batch_size]
        file = folder / f"{number:05d}.safetensors" if folder is not None else None
        if file is not None and file.exists():
            chunks.append(load_tensors(file)[0]["images"].to(part.images.device))
        else:
            chunks.append(attack(classifier, part.images, part.labels).images)
            if file is not None:
                save_tensors(file, {"images": chunks[-1]})
        progress(stage, number + 1, len(starts))
    return torch.cat(chunks)

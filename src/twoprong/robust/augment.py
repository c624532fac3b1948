"""Random changes to training images, whole batches at once on the device they live on.

Adversarial training overfits more than ordinary training does, and diverse, mild changes are one remedy: crops that may lie
anywhere, colours, erased patches (Li & Spratling 2023, "Data augmentation alone can improve adversarial training"; the
numbers here are our own).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from twoprong.models.train import augment as crop_and_mirror

Augmentation = Callable[[Tensor, torch.Generator], Tensor]

CUT = 0.3  # of a side: the most that a crop takes away
JITTER = 0.3  # the most by which brightness, contrast and saturation change, as a share
ERASED = (0.02, 0.2)  # of the area: the smallest and the largest patch
RATIO = 3.0  # the longest patch, height to width or width to height


def strong(images: Tensor, draw: torch.Generator) -> Tensor:
    """Mirror images and shifted crops always; half of the time other colours, half of the time a patch erased."""
    images = mirrored(shifted_crop(images, draw), draw)
    images = _sometimes(0.5, recoloured, images, draw)
    return _sometimes(0.5, erased, images, draw)


def shifted_crop(images: Tensor, draw: torch.Generator) -> Tensor:
    """A random part of every image, put down at a random place on black; up to CUT of the height and the width is lost."""
    n, _, height, width = images.shape
    rows, row_there = _moved(n, height, images.device, draw)
    columns, column_there = _moved(n, width, images.device, draw)
    image = torch.arange(n, device=images.device)
    found = images[image[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    return found * (row_there[:, None, :, None] & column_there[:, None, None, :])


def _moved(n: int, side: int, device: torch.device, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """For every image and every place along a side: which line of the original comes there, and whether one does."""
    lost = _whole(n, int(CUT * side) + 1, device, draw)
    begin = (torch.rand(n, 1, generator=draw, device=device) * (lost + 1)).long()
    place = (torch.rand(n, 1, generator=draw, device=device) * (lost + 1)).long()
    line = torch.arange(side, device=device) - place
    return (line + begin).clamp(0, side - 1), (line >= 0) & (line < side - lost)


def mirrored(images: Tensor, draw: torch.Generator) -> Tensor:
    return _sometimes(0.5, lambda x, _: x.flip(3), images, draw)


def recoloured(images: Tensor, draw: torch.Generator) -> Tensor:
    """Brightness, contrast and saturation, each up or down by up to JITTER; back in [0, 1]."""
    images = (images * _factor(images, draw)).clamp(0, 1)
    grey = images.mean((1, 2, 3), keepdim=True)
    images = (grey + _factor(images, draw) * (images - grey)).clamp(0, 1)
    grey = images.mean(1, keepdim=True)
    return (grey + _factor(images, draw) * (images - grey)).clamp(0, 1)


def erased(images: Tensor, draw: torch.Generator) -> Tensor:
    """A black rectangle in every image: an ERASED share of its area, at a random place, as long as RATIO at most."""
    n, _, height, width = images.shape
    device = images.device
    area = torch.empty(n, 1, device=device).uniform_(*ERASED, generator=draw) * height * width
    ratio = torch.empty(n, 1, device=device).uniform_(-1, 1, generator=draw).mul(math.log(RATIO)).exp()
    rows = _stretch((area * ratio).sqrt(), height, draw)
    columns = _stretch((area / ratio).sqrt(), width, draw)
    return images * ~(rows[:, None, :, None] & columns[:, None, None, :])


def _stretch(length: Tensor, side: int, draw: torch.Generator) -> Tensor:
    """A stretch of that length (N, 1) at a random place along a side, as a mask (N, side)."""
    length = length.round().clamp(1, side)
    begin = (torch.rand(length.shape, generator=draw, device=length.device) * (side - length + 1)).floor()
    place = torch.arange(side, device=length.device)
    return (place >= begin) & (place < begin + length)


def _sometimes(share: float, change: Augmentation, images: Tensor, draw: torch.Generator) -> Tensor:
    chosen = torch.rand(len(images), 1, 1, 1, generator=draw, device=images.device) < share
    return torch.where(chosen, change(images, draw), images)


def _factor(images: Tensor, draw: torch.Generator) -> Tensor:
    return torch.empty(len(images), 1, 1, 1, device=images.device).uniform_(1 - JITTER, 1 + JITTER, generator=draw)


def _whole(n: int, below: int, device: torch.device, draw: torch.Generator) -> Tensor:
    return torch.randint(below, (n, 1), generator=draw, device=device)


AUGMENTATIONS: dict[str, Augmentation] = {"none": lambda images, _: images, "crop": crop_and_mirror, "strong": strong}

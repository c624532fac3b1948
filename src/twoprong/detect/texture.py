"""The fine structure of images: how much they vary along each principal direction of small patches.

Photographs vary little along some directions (against the grain, between colours), and along those an attack's change of
one or two grey levels stands out, image by image. Nothing of it depends on a network.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

SIDE = 4  # of a patch, in pixels
PLACES = 256  # along a side, about: of larger images some patches are left out
PART = 10  # images at a time: a patch at every place takes memory, and on a CPU so few stay in its cache
FLOOR = 1e-7  # of a mean square: far below one grey level, and it keeps flat images finite


@torch.no_grad()
def patch_directions(images: Tensor, side: int = SIDE) -> Tensor:
    """The principal directions of the images' patches, as orthonormal filters (C·side², C, side, side)."""
    channels, height, width = images.shape[1:]
    tall, wide = min(side, height), min(side, width)
    size, total = channels * tall * wide, torch.zeros((), dtype=torch.double, device=images.device)
    mean = images.double().mean((0, 2, 3)).repeat_interleave(tall * wide)[:, None]
    for part in images.split(PART):
        patches = F.unfold(part.double(), (tall, wide), stride=_stride(images)) - mean
        total = total + torch.einsum("nip,njp->ij", patches, patches)
    return torch.linalg.eigh(total).eigenvectors.T.reshape(size, channels, tall, wide).float()


def texture(images: Tensor, filters: Tensor) -> Tensor:
    """log of the variance over positions of each filter's response: (N, filters), differentiable in the images.

    On a CPU this layout, a few images at a time and two plain means take a fifth to a half of the time of a usual
    convolution and `Tensor.var`.
    """
    part = PART if images.device.type == "cpu" else len(images)
    return torch.cat([_texture(some, filters) for some in images.split(max(part, 1))])


def _texture(images: Tensor, filters: Tensor) -> Tensor:
    with torch.autocast(images.device.type, enabled=False):
        images, filters = (x.to(filters.dtype, memory_format=torch.channels_last) for x in (images, filters))
        response = F.conv2d(images, filters, stride=_stride(images)).permute(0, 2, 3, 1).flatten(1, 2)
        variance = (response - response.mean(1, keepdim=True)).square().mean(1)
        return (variance + FLOOR).log()


def _stride(images: Tensor) -> int:
    return max(1, min(images.shape[2:]) // PLACES)

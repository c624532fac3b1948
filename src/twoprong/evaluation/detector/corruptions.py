"""Harmless changes of clean images, as cameras and web sites make them: does the detector take them for attacks?"""

import io
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from twoprong.errors import InputError

Corruption = Callable[[Tensor, float, torch.Generator | None], Tensor]


def blur(images: Tensor, strength: float, generator: torch.Generator | None = None) -> Tensor:
    """A Gaussian of `strength` pixels (standard deviation), cut off at three; the border is repeated outwards."""
    _check("blur", strength, 0, math.inf)
    if strength == 0:
        return images.clone()
    reach = max(1, math.ceil(3 * strength))
    offsets = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    # In two divisions: the square of a tiny strength is zero.
    weights = torch.exp(-((offsets / strength) ** 2) / 2)
    weights, channels = weights / weights.sum(), images.shape[1]
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    across = F.conv2d(padded, weights.view(1, 1, 1, -1).repeat(channels, 1, 1, 1), groups=channels)
    return F.conv2d(across, weights.view(1, 1, -1, 1).repeat(channels, 1, 1, 1), groups=channels).clamp(0, 1)


def jpeg(images: Tensor, strength: float, generator: torch.Generator | None = None) -> Tensor:
    """Each image saved as a JPEG of quality `strength` (1 to 100) and read again; colour is halved in size, as is usual."""
    _check("jpeg", strength, 1, 100)
    pixels = (images.detach() * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    read = np.stack([_through_jpeg(image, round(strength)) for image in pixels])
    return torch.from_numpy(read).permute(0, 3, 1, 2).to(images.device, images.dtype).contiguous() / 255


def brightness(images: Tensor, strength: float, generator: torch.Generator | None = None) -> Tensor:
    """`strength` (-1 to 1) added to every pixel, cut off at black and white."""
    _check("brightness", strength, -1, 1)
    return (images + strength).clamp(0, 1)


def noise(images: Tensor, strength: float, generator: torch.Generator | None = None) -> Tensor:
    """Gaussian noise of standard deviation `strength` on every value, cut off at black and white."""
    _check("noise", strength, 0, math.inf)
    return (images + strength * torch.empty_like(images).normal_(generator=generator)).clamp(0, 1)


# Each takes images (N, C, H, W) in [0, 1], a strength and a generator, and gives images of the same kind.
CORRUPTIONS: dict[str, Corruption] = {"blur": blur, "jpeg": jpeg, "brightness": brightness, "noise": noise}

# From hardly visible to plain to see; a person still reads every image.
STRENGTHS: dict[str, tuple[float, ...]] = {
    "blur": (0.4, 0.7, 1.0),
    "jpeg": (90, 60, 30),
    "brightness": (0.05, 0.1, 0.2),
    "noise": (0.02, 0.04, 0.08),
}


def _through_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    from PIL import Image  # only who makes pictures pays for the import

    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(file, "JPEG", quality=quality)
    with Image.open(file) as stored:
        return np.asarray(stored).reshape(image.shape)


def _check(name: str, strength: float, low: float, high: float) -> None:
    if not (low <= strength <= high and math.isfinite(strength)):
        raise InputError(
            f"{name}: expected a strength from {low:g} to {high:g}, got {strength!r}; see STRENGTHS for usual ones"
        )

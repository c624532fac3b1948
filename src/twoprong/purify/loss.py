"""What the denoiser is trained on and for (paper eq. 7): noise in, images that the kernel and the classifier accept out."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from twoprong.config import Estimator, NoiseLaw
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.mmd import mmd2
from twoprong.models.features import Features


class Noise(Protocol):
    """Whatever says how much noise and of which kind: a denoiser's settings, or the route it is deployed in."""

    @property
    def sigma(self) -> float: ...
    @property
    def noise(self) -> NoiseLaw: ...


def add_noise(images: Tensor, law: Noise, generator: torch.Generator | None) -> Tensor:
    """images + N(0, σ²), brought back into [0, 1] unless it is "unclamped". "clamped" noise is put into [0, 1] before it is
    added, too, as in the authors' code: half of it is 0 then, and none negative."""
    noise = law.sigma * torch.empty_like(images).normal_(generator=generator)
    if law.noise == "clamped":
        noise = noise.clamp(0, 1)
    noisy = images + noise
    return noisy if law.noise == "unclamped" else noisy.clamp(0, 1)


def denoiser_loss(
    denoised: Tensor,
    clean: Sample,
    labels: Tensor,
    features: Features,
    kernel: DeepKernel,
    alpha: float,
    estimator: Estimator = "u",
) -> Tensor:
    """MMD-OPT(clean, denoised) + α·CE(classifier(denoised), labels): one pass of the classifier gives both terms.

    The biased estimator "v" has the kernel of each denoised image and its own clean one in it, and draws them together.
    """
    logits, deep = features(denoised)
    seen = Sample(denoised, deep)
    discrepancy = mmd2(kernel(clean, clean), kernel(seen, seen), kernel(clean, seen), estimator=estimator)
    return discrepancy + alpha * F.cross_entropy(logits, labels)

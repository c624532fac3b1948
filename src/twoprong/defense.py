"""The deployed object: a classifier with a detector before it and a denoiser beside it. Read this file first.

    batch ─► features ─► MMD-OPT against the reference ─┬─ below the threshold ─► the classifier's own logits
                                                        └─ otherwise ─► noise ─► denoiser ─► classifier

Whatever is served, cleaned or attacked in an evaluation is this object; there is no second forward pass anywhere.
"""

import logging
import os
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from twoprong.attacks.target import Route
from twoprong.bundle import Parts, read_bundle, write_bundle
from twoprong.config import FitConfig
from twoprong.data.tensors import check_images
from twoprong.detect.detector import UNTESTED, Detector, Verdict
from twoprong.detect.kernel import Sample
from twoprong.detect.mmd import mmd2
from twoprong.errors import InputError
from twoprong.models.dunet import DUNet
from twoprong.models.fast import Compiler, HalfPrecision, fast
from twoprong.models.features import Features, FeatureSource, full
from twoprong.purify.loss import add_noise

log = logging.getLogger("twoprong")


@dataclass(frozen=True)
class Decision:
    """What became of one batch. Nothing is thrown away: there are logits for every image, in order.

    `images` is what the classifier saw: the batch itself, or its denoised form. `tested` is False only where the batch was
    too small for the test and the declared policy decided; statistic, threshold and p-value are NaN then.
    """

    logits: Tensor
    images: Tensor
    adversarial: bool
    statistic: float
    threshold: float
    p_value: float
    tested: bool = True

    @property
    def labels(self) -> Tensor:
        return self.logits.argmax(1)


class Defense(nn.Module):
    """Call it with a batch (N, C, H, W) in [0, 1] to get a Decision. It is also the `Target` of every attack.

    The noise before the denoiser is seeded by the operating system unless a generator is given, as evaluations do.
    `config.on_small_batch` says what happens to a batch below the smallest calibrated size. `about` is what is known of
    the defence's making: JSON-able facts that travel with the bundle.
    """

    coupled = True  # a batch is judged as one

    def __init__(
        self,
        classifier: nn.Module,
        detector: Detector,
        denoiser: DUNet,
        config: FitConfig,
        features: FeatureSource = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.classifier, self.detector, self.denoiser = classifier, detector, denoiser
        self.features = Features(classifier, features)
        self.config, self.about = config, about or {}
        self.eval()

    def train(self, mode: bool = True) -> "Defense":
        """A fitted defence is not trained: its parts stay in eval mode, whatever is asked."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> Decision:
        """Judge a batch and classify it by the route the verdict names. Raises InputError for anything but a batch."""
        self.eval()  # somebody may have put the classifier, which is theirs, into training mode
        images = self._check(images)
        logits, features = self.features(images)
        verdict, tested = self._judge(Sample(images, features))
        if verdict.adversarial:
            images = self.denoise(images, generator)
            logits = full(self.classifier(images))
        return Decision(logits, images, verdict.adversarial, verdict.statistic, verdict.threshold, verdict.p_value, tested)

    decide = forward

    def logits(
        self, images: Tensor, route: Route | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Logits (draws, N, classes) on a route, or on the one the batch takes; exact gradients in the images.

        The clean route has no noise and gives one draw; the draws of the other are computed as one batch.
        """
        if route is None:
            with torch.no_grad():
                route = "denoise" if self._flags(images) else "clean"
        if route == "clean":
            return full(self.classifier(images))[None]
        many = full(self.classifier(self.denoise(images.repeat(draws, 1, 1, 1), generator)))
        return many.view(draws, len(images), -1)

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        """MMD-OPT of the batch against the deployed reference, as a scalar tensor differentiable in the images.

        Against other images (`reference`) it is the paper's form on the same kernel; nothing deployed uses that.
        """
        batch = Sample(images, self.features(images)[1])
        if reference is None:
            return self.detector.statistic(batch)
        other, kernel = Sample(reference, self.features(reference)[1]), self.detector.kernel
        return mmd2(kernel(other, other), kernel(batch, batch), kernel(other, batch))

    def threshold(self, size: int) -> float:
        """The statistic at which a batch of `size` is flagged."""
        return self.detector.thresholds.at(size)

    def denoise(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The adversarial route up to the classifier: noise, denoiser, [0, 1]; differentiable in the images."""
        if generator is None:
            generator = torch.Generator(images.device).manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        denoised = full(self.denoiser(add_noise(images, self.config.denoiser.sigma, generator)))
        return denoised.clamp(0, 1)

    purify = denoise

    def embed(self, images: Tensor) -> Tensor:
        """The features (N, d) that the test sees."""
        return self.features(images)[1]

    def witness(self, images: Tensor, others: Tensor) -> Tensor:
        """How conspicuous each image is among `others`: mean k(others, z) - mean k(reference, z), differentiable.

        The witness function of MMD (Gretton et al. 2012): putting the image z into a batch of n raises the statistic by
        2/n of it, up to terms of second order and what does not depend on z.
        """
        seen, rest = (Sample(x, self.embed(x)) for x in (images, others))
        kernel = self.detector.kernel
        return kernel(rest, seen).mean(0) - kernel(self.detector.reference, seen).mean(0)

    def reference_images(self) -> Tensor:
        return self.detector.reference_pixels

    def accelerated(self, compiler: Compiler | None = torch.compile) -> "Defense":
        """A copy for attackers in a hurry: the same test, its networks in bf16, folded and compiled (`models/fast.py`).

        It is what this defence is up to rounding, and good for gradients; decide, score and save with the defence itself.
        """
        source, denoiser = self.features.source, cast(DUNet, fast(self.denoiser, compiler))
        # A layer's output can only be listened to where nothing is compiled away.
        classifier = fast(self.classifier, compiler) if source is None else HalfPrecision(self.classifier)
        named = f"network.{source}" if isinstance(source, str) else source
        detector = self.detector if compiler is None else self.detector.hastened(compiler)
        return Defense(classifier, detector, denoiser, self.config, named, self.about)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the bundle directory (see `twoprong.bundle`)."""
        parts = Parts(self.classifier, self.detector, self.denoiser, self.config, self.features.source, self.about)
        write_bundle(parts, path, overwrite)

    def _flags(self, images: Tensor) -> bool:
        """The route of a batch, without the p-value: what an attacker asks at every step."""
        if len(images) < self.detector.batch_sizes[0]:
            return self.config.on_small_batch == "denoise"
        return self.detector.flags(self.statistic(images).item(), len(images))

    def _judge(self, batch: Sample) -> tuple[Verdict, bool]:
        """The detector's verdict, or the declared policy for a batch too small to test."""
        smallest, policy = self.detector.batch_sizes[0], self.config.on_small_batch
        if len(batch) >= smallest:
            return self.detector(batch), True
        if policy == "error":
            raise InputError(
                f"batch of {len(batch)} image{'s' * (len(batch) != 1)}: expected {smallest} or more, fewer cannot be "
                "tested; collect more, or set on_small_batch to 'denoise' or 'classify'"
            )
        log.warning("batch of %d is too small to test: %s (on_small_batch)", len(batch), policy)
        return replace(UNTESTED, adversarial=policy == "denoise"), False

    def _check(self, images: Tensor) -> Tensor:
        images = check_images(images)
        expected = tuple(self.detector.reference_pixels.shape[1:])
        if tuple(images.shape[1:]) != expected:
            raise InputError(
                f"images: expected (channels, height, width) = {expected}, as this defence was fitted on, "
                f"got {tuple(images.shape[1:])}; convert or resize them, or fit on such images"
            )
        return images.to(self.detector.reference_pixels.dtype)


def load(
    path: str | os.PathLike[str],
    classifier: nn.Module | None = None,
    *,
    features: FeatureSource = None,
    device: torch.device | str = "cpu",
) -> Defense:
    """A Defense from a bundle, every byte verified. `classifier` is needed only if it is not one of ours.

    Raises BundleError, naming the file, for a bundle that is damaged, incomplete or of another format.
    """
    parts = read_bundle(path, classifier, features)
    return Defense(**vars(parts)).to(device)

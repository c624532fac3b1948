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
from twoprong.data.tensors import check_extent, check_layout, extent
from twoprong.detect.detector import UNTESTED, Detector, Verdict
from twoprong.detect.kernel import Sample
from twoprong.detect.mmd import mmd2
from twoprong.errors import InputError
from twoprong.models.dunet import DUNet
from twoprong.models.fast import Compiler, Fast, HalfPrecision, Replayed, compiled, fast
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
    settled = False  # whether the networks are our own copies, which nobody else puts into training mode

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
        self.exact: Defense | None = None  # of an accelerated copy: what it is a copy of
        self.eval()

    def train(self, mode: bool = True) -> "Defense":
        """A fitted defence is not trained: its parts stay in eval mode, whatever is asked."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> Decision:
        """Judge a batch and classify it by the route the verdict names. Raises InputError for anything but a batch."""
        if not self.settled:
            self.eval()  # somebody may have put the classifier, which is theirs, into training mode
        images = self._check(images)
        tested = len(images) >= self.detector.batch_sizes[0]
        if tested:
            logits, measured = self.look(images, self.detector.memberships(len(images)))
            value, reached, low, high = measured.tolist()  # the only time that a GPU is waited for
            check_extent(images, low, high)
            verdict = self.detector.verdict(value, reached, len(images))
        else:
            check_extent(images, *extent(images).tolist())
            verdict, logits = self._untested(len(images)), full(self.classifier(images))
        if verdict.adversarial:
            images, logits = self.rescue(self._noisy(images, generator))
        return Decision(logits, images, verdict.adversarial, verdict.statistic, verdict.threshold, verdict.p_value, tested)

    decide = forward

    def look(self, images: Tensor, memberships: Tensor) -> tuple[Tensor, Tensor]:
        """The classifier's logits; and in one tensor what the detector measures and the extent of the images."""
        logits, features = self.features(images)
        measured = self.detector.measure(Sample(images, features), memberships)
        return logits, torch.cat([measured, extent(images).to(measured)])

    def rescue(self, noisy: Tensor) -> tuple[Tensor, Tensor]:
        """Noisy images denoised, and the classifier's logits for them."""
        images = self._denoised(noisy)
        return images, full(self.classifier(images))

    def logits(
        self, images: Tensor, route: Route | None = None, draws: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Logits (draws, N, classes) on a route, or on the one the batch takes; exact gradients in the images.

        A route without noise gives one draw; the draws of the other are computed as one batch.
        """
        if route is None:
            with torch.no_grad():
                route = "denoise" if self._flags(images) else "clean"
        if route == "clean":
            return full(self.classifier(images))[None]
        draws = draws if self.config.denoiser.sigma else 1
        many = full(self.classifier(self.denoise(images.repeat(draws, 1, 1, 1), generator)))
        return many.view(draws, len(images), -1)

    def statistic(self, images: Tensor, reference: Tensor | None = None) -> Tensor:
        """MMD-OPT of the batch against the deployed reference, as a scalar tensor differentiable in the images.

        Against other images (`reference`) it is the paper's form on the same kernel; nothing deployed uses that. Of an
        accelerated copy the value is the deployed one, or attackers would pass another test; the gradient is the copy's.
        """
        deployed = None
        if self.exact is not None and reference is None:
            with torch.no_grad():
                deployed = self.exact.statistic(images)
            if not (torch.is_grad_enabled() and images.requires_grad):
                return deployed
        batch = Sample(images, self.features(images)[1])
        if reference is None:
            value = self.detector.statistic(batch)
            return value if deployed is None else value + (deployed - value.detach())
        other, kernel = Sample(reference, self.features(reference)[1]), self.detector.kernel
        return mmd2(kernel(other, other), kernel(batch, batch), kernel(other, batch))

    def threshold(self, size: int) -> float:
        """The statistic at which a batch of `size` is flagged."""
        return self.detector.threshold(size)

    def denoise(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The adversarial route up to the classifier: noise, denoiser, [0, 1]; differentiable in the images."""
        return self._denoised(self._noisy(images, generator))

    purify = denoise

    def _noisy(self, images: Tensor, generator: torch.Generator | None) -> Tensor:
        if generator is None:
            generator = torch.Generator(images.device).manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return add_noise(images, self.config.denoiser, generator)

    def _denoised(self, noisy: Tensor) -> Tensor:
        return full(self.denoiser(noisy)).clamp(0, 1)

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

    def accelerated(self, compiler: Compiler | None = compiled) -> "Defense":
        """A copy for attackers in a hurry: the same statistic, its networks in bf16, folded and compiled (`models/fast.py`).

        It is what this defence is up to rounding, and good for gradients; decide, score and save with the defence itself.
        """
        source, denoiser = self.features.source, cast(DUNet, fast(self.denoiser, compiler))
        # A layer's output can only be listened to where nothing is compiled away.
        apart = source is None or callable(source)
        classifier = fast(self.classifier, compiler) if apart else HalfPrecision(self.classifier)
        named: FeatureSource = source
        if isinstance(source, str):
            named = f"network.{source}"
        elif isinstance(source, tuple):
            named = tuple(f"network.{one}" for one in source)
        quick = Defense(classifier, self.detector, denoiser, self.config, named, self.about)
        quick.settled = source is None and isinstance(classifier, Fast)
        quick.exact = self
        if compiler is not None and quick.settled:  # of what is not ours, nobody knows what a compiler would meet
            for step in (quick.look, quick.rescue):
                ready = compiler(step)
                setattr(quick, step.__name__, Replayed(ready) if self.detector.k_reference.is_cuda else ready)
        return quick

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the bundle directory (see `twoprong.bundle`)."""
        parts = Parts(self.classifier, self.detector, self.denoiser, self.config, self.features.source, self.about)
        write_bundle(parts, path, overwrite)

    def _flags(self, images: Tensor) -> bool:
        """The route of a batch, without the p-value: what an attacker asks at every step."""
        if len(images) < self.detector.batch_sizes[0]:
            return self.config.on_small_batch == "denoise"
        return self.detector.flags(self.statistic(images).item(), len(images))

    def _untested(self, size: int) -> Verdict:
        """The declared policy for a batch too small to test."""
        policy = self.config.on_small_batch
        if policy == "error":
            raise InputError(
                f"batch of {size} image{'s' * (size != 1)}: expected {self.detector.batch_sizes[0]} or more, fewer cannot "
                "be tested; collect more, or set on_small_batch to 'denoise' or 'classify'"
            )
        log.warning("batch of %d is too small to test: %s (on_small_batch)", size, policy)
        return replace(UNTESTED, adversarial=policy == "denoise")

    def _check(self, images: Tensor) -> Tensor:
        """The images as the networks take them; what values they have is seen later."""
        images = check_layout(images)
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

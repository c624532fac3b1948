"""The deployed object: a test before two routes. Read this file first.

    batch ─► features ─► MMD-OPT against the reference ─┬─ below the threshold ─► passing route ─┐
                                                        └─ otherwise ─► flagged route ───────────┴─► Decision

Whatever is served, cleaned or attacked in an evaluation is this object; there is no second forward pass anywhere.
In the paper's mode the passing route is the classifier, the flagged one noise → denoiser → classifier (`routes.py`).
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from twoprong.bundle import Parts, read_bundle, write_bundle
from twoprong.config import FitConfig
from twoprong.data.tensors import check_extent, check_layout, extent
from twoprong.detect.copies import copies
from twoprong.detect.detector import UNTESTED, Detector, Verdict, refuse_half
from twoprong.detect.kernel import Sample
from twoprong.errors import InputError
from twoprong.models.features import Features, FeatureSource
from twoprong.routes import NOTHING, Known, Route
from twoprong.whitebox import WhiteBox

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


class Defense(WhiteBox):
    """Call it with a batch (N, C, H, W) in [0, 1] to get a Decision. Attacks see all of it (`whitebox.py`).

    `extractor` gives the features that the test sees. `config.on_small_batch` says what happens to a batch below the
    smallest calibrated size. `about` is what is known of the defence's making: JSON-able facts that travel with the bundle.
    """

    def __init__(
        self,
        extractor: Features,
        detector: Detector,
        passing: Route,
        flagged: Route,
        config: FitConfig,
        about: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.extractor, self.detector = extractor, detector
        self.passing, self.flagged = passing, flagged
        self.config, self.about = config, about or {}
        self.eval()

    @property
    def classifier(self) -> nn.Module:
        """The protected classifier, as it answers without a defence."""
        return self.passing.classifier

    @property
    def parts(self) -> Parts:
        """What the defence is made of: `Defense(**vars(parts))` is it again."""
        return Parts(self.extractor, self.detector, self.passing, self.flagged, self.config, self.about)

    def train(self, mode: bool = True) -> "Defense":
        """A fitted defence is not trained: its parts stay in eval mode, whatever is asked."""
        for module in self.modules():
            module.training = False
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Defense":
        refuse_half(fn)  # before any part is changed
        return cast(Defense, super()._apply(fn, recurse))

    @torch.no_grad()
    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> Decision:
        """Judge a batch and classify it by the route the verdict names. Raises InputError for anything but a batch.

        Routes that draw noise take it from the operating system unless a generator is given, as evaluations do. Copies of
        one image count once, to the test and for the size of the batch, and get one answer.
        """
        self.eval()  # somebody may have put the classifier, which is theirs, into training mode
        images, known = self._check(images), NOTHING
        repeated = copies(images)
        if repeated is not None:
            first, back = repeated
            once = self.forward(images[first], generator)
            return replace(once, logits=once.logits[back], images=once.images[back])
        tested = len(images) >= self.detector.batch_sizes[0]
        if tested:
            logits, measured = self.look(images, *self.detector.against(len(images)))
            value, times, low, high = measured.tolist()  # the only time that a GPU is waited for
            check_extent(images, low, high)
            verdict, known = self.detector.verdict(value, times, len(images)), {self.extractor.classifier: logits}
        else:
            check_extent(images, *extent(images).tolist())
            verdict = self._untested(len(images))
        route = self.flagged if verdict.adversarial else self.passing
        disturbed = route.disturb(images, 1, generator)
        seen, logits = self.answer(route, disturbed, known if disturbed is images else NOTHING)
        return Decision(logits, seen, verdict.adversarial, verdict.statistic, verdict.threshold, verdict.p_value, tested)

    decide = forward

    def look(self, images: Tensor, k_reference: Tensor, memberships: Tensor) -> tuple[Tensor, Tensor]:
        """The extractor's logits; and in one tensor what the detector measures and the extent of the images."""
        logits, features = self.extractor(images)
        measured = self.detector.measure(Sample(images, features), k_reference, memberships)
        return logits, torch.cat([measured, extent(images).to(measured)])

    def answer(self, route: Route, disturbed: Tensor, known: Known = NOTHING) -> tuple[Tensor, Tensor]:
        """What a route shows its classifier, and the logits for it."""
        seen = route.restore(disturbed)
        return seen, route.classify(seen, known if seen is disturbed else NOTHING)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the bundle directory (see `twoprong.bundle`)."""
        write_bundle(self.parts, path, overwrite)

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
    return Defense(**vars(read_bundle(path, classifier, features))).to(device)

"""The deployed object: a test before two routes. Read this file first.

    batch ─► features ─► MMD-OPT against the reference ─┬─ below the threshold ─► passing route ─────┐
                                                        └─ otherwise: suspects ─► flagged route,     │
                                                                      the rest ─► passing route ─────┴─► Decision

Whatever is served, cleaned or attacked in an evaluation is this object; there is no second forward pass anywhere.
In the paper's mode the passing route is the classifier, the flagged one noise → denoiser → classifier (`routes.py`).
`config.rescue` says what of a flagged batch takes the flagged route: its suspects, or all of it as in the paper, or nothing.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from twoprong.bundle import Parts, read_bundle, write_bundle
from twoprong.choices import check_choice
from twoprong.config import FitConfig, Rescue, SmallBatchPolicy
from twoprong.data.images import ImageLike, check_extent, check_layout, extent
from twoprong.decision import Decision, class_names
from twoprong.detect.checks import refuse_half
from twoprong.detect.copies import copies
from twoprong.detect.detector import Detector
from twoprong.detect.kernel import Sample
from twoprong.detect.verdict import UNTESTED, Verdict
from twoprong.errors import InputError
from twoprong.models.features import Features, FeatureSource, full
from twoprong.predict import Predictions, Source, judged, predict
from twoprong.progress import Progress
from twoprong.routes import NOTHING, Known, Route
from twoprong.whitebox import WhiteBox, averaged

log = logging.getLogger("twoprong")


class Defense(WhiteBox):
    """Call it with a batch to get a Decision, `predict` with any number of images. Attacks see all of it (`whitebox.py`).

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
    def forward(self, images: ImageLike, generator: torch.Generator | None = None, scored: bool = False) -> Decision:
        """Judge a batch and classify it by the routes the verdict names. Raises InputError for anything but a batch.

        A batch is a tensor or array (N, C, H, W) or (N, H, W, C), or a list of images or pictures: floats in [0, 1], or
        bytes (uint8, 0 to 255). It is moved to the defence's device. Routes that draw noise take it from the operating
        system unless a generator is given, as evaluations do. Copies of one image count once, to the test and for the size
        of the batch, and get one answer. Images whose features are no finite numbers cannot be judged: they are suspects by
        themselves, and the others are judged without them. `scored` asks for the scores of a batch that passes, too.
        """
        self.eval()  # somebody may have put the classifier, which is theirs, into training mode
        batch, known, scores = self._check(images), NOTHING, None
        repeated = copies(batch)
        if repeated is not None:
            first, back = repeated
            check_extent(batch, *extent(batch).tolist())  # here an image still has the number that the caller knows
            once = self.forward(batch[first], generator, scored)
            return once.rows(back)
        tested = len(batch) >= self.detector.batch_sizes[0]
        if tested:
            features, measured, *answers = self.look(batch, *self.detector.against(len(batch)))
            value, times, low, high = measured.tolist()  # the only time that a GPU is waited for
            check_extent(batch, low, high)
            if not isfinite(value) and (broken := self._broken(features)) is not None:
                return self._apart(batch, broken, generator, scored)
            verdict, known = self.detector.verdict(value, times, len(batch)), dict(zip(self._asked, answers, strict=True))
        else:
            check_extent(batch, *extent(batch).tolist())
            verdict = self._untested(len(batch))
        suspects = torch.full((len(batch),), verdict.adversarial, device=batch.device)
        if tested and verdict.adversarial:
            suspects, scores = self.detector.suspects(Sample(batch, features))
        elif tested and scored and self.detector.blame is not None:
            scores = self.detector.scores(Sample(batch, features))
        seen, logits = self._by_route(batch, self._rescued(suspects), known, generator)
        rejected = torch.full_like(suspects, verdict.adversarial) if self.config.rescue == "refuse" else None
        if rejected is not None:
            logits = logits.masked_fill(rejected[:, None], torch.nan)
        return Decision(
            logits=logits,
            images=seen,
            adversarial=verdict.adversarial,
            statistic=verdict.statistic,
            threshold=verdict.threshold,
            p_value=verdict.p_value,
            suspects=suspects,
            scores=scores,
            rejected=rejected,
            tested=tested,
            classes=class_names(self.about, logits.shape[1]),
        )

    decide = forward

    def predict(
        self,
        images: Source,
        batch_size: int = 100,
        progress: Progress | bool | None = True,
        generator: torch.Generator | None = None,
    ) -> Predictions:
        """Labels, probabilities and the verdict on every batch, in order, for any number of images.

        `images` is what a call takes, or a Dataset, a DataLoader (labels are ignored) or a generator of batches or images,
        of which no more than two batches are in memory. Batches are at most as large as the test allows; a small remainder
        joins the last one. Fewer images in all than can be tested are the policy's (`on_small_batch`). `progress` is a bar
        on stderr if that is a terminal, or a listener of your own.
        """
        return predict(self.batches(images, batch_size, progress, generator))

    def batches(
        self,
        images: Source,
        batch_size: int = 100,
        progress: Progress | bool | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[Predictions]:
        """As `predict`, one batch after the other. `tp.stream` gives them image by image."""
        judge = partial(self, generator=generator)
        return judged(judge, self._check, self.detector.batch_sizes, images, batch_size, progress)

    @property
    def _asked(self) -> list[nn.Module]:
        """The networks that every image is shown whatever the verdict is, the extractor's first."""
        own, others = self.extractor.classifier, self.flagged.asked
        return [own, *(network for network in self.passing.asked if network in others and network is not own)]

    def look(self, images: Tensor, k_reference: Tensor, memberships: Tensor) -> tuple[Tensor, ...]:
        """The features; in one tensor what the detector measures and the images' extent; the logits of those `_asked`.

        All that need not wait for the verdict is in here, so that a GPU does not wait for it either.
        """
        logits, features = self.extractor(images)
        measured = self.detector.measure(Sample(images, features), k_reference, memberships)
        others = (full(network(images)) for network in self._asked[1:])
        return features, torch.cat([measured, extent(images).to(measured)]), logits, *others

    def _by_route(
        self, batch: Tensor, rescued: Tensor, known: Known, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """What the classifiers are shown, and the logits: the `rescued` take the flagged route, the others the passing.

        Of a random route as many draws are averaged as cost no more than the whole batch with one; the first is shown.
        """
        parts = []
        for route, rows in self._ways(rescued):
            part, here, many = batch, known, 1
            if len(rows) < len(batch):
                many = averaged(route, len(rows), len(batch))
                index = self.index(rows.repeat(many), len(batch))
                part, here = batch[index], {network: logits[index] for network, logits in known.items()}
            disturbed = route.disturb(part, 1, generator)
            seen, logits = self.answer(route, disturbed, here if disturbed is part else NOTHING)
            logits = logits[: many * len(rows)].unflatten(0, (many, len(rows))).mean(0)
            parts.append((rows, seen[: len(rows)], logits))
        if len(parts) == 1:
            return parts[0][1:]
        back = torch.cat([rows for rows, _, _ in parts]).argsort()
        return torch.cat([seen for _, seen, _ in parts])[back], torch.cat([logits for *_, logits in parts])[back]

    def _apart(self, batch: Tensor, broken: Tensor, generator: torch.Generator | None, scored: bool) -> Decision:
        """The decision where some images are `broken`: they take the flagged route, the others are a batch of their own."""
        order = torch.cat([(~broken).nonzero()[:, 0], broken.nonzero()[:, 0]])
        alone, rest = batch[broken], self.forward(batch[~broken], generator, scored)
        suspects = torch.ones(len(alone), dtype=torch.bool, device=batch.device)
        seen, logits = self._by_route(alone, self._rescued(suspects), NOTHING, generator)
        rejected = rest.rejected
        if rejected is not None:
            rejected, logits = torch.cat([rejected, suspects]), logits.masked_fill(suspects[:, None], torch.nan)
        return replace(
            rest,
            logits=torch.cat([rest.logits, logits]),
            images=torch.cat([rest.images, seen]),
            suspects=torch.cat([rest.suspects, suspects]),
            scores=None if rest.scores is None else torch.cat([rest.scores, rest.scores.new_full((len(alone),), torch.nan)]),
            rejected=rejected,
        ).rows(order.argsort())

    def index(self, index: Tensor, size: int) -> Tensor:
        """The images of a batch of `size` that a route computes."""
        return index

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
                "be tested; collect more, or choose: tp.load(..., on_small_batch='denoise' or 'classify')"
            )
        log.warning("batch of %d is too small to test: %s (on_small_batch)", size, policy)
        return replace(UNTESTED, adversarial=policy == "denoise")

    def _check(self, images: ImageLike) -> Tensor:
        """The images as the networks take them, where the networks are; what values they have is seen later."""
        reference = self.detector.reference_pixels
        if isinstance(images, Tensor):
            images = images.to(reference.device)  # first, for bytes are fewer than floats
        return check_layout(images, tuple(reference.shape[1:])).to(reference)


def load(
    path: str | os.PathLike[str],
    classifier: nn.Module | None = None,
    *,
    features: FeatureSource = None,
    device: torch.device | str = "cpu",
    on_small_batch: SmallBatchPolicy | None = None,
    rescue: Rescue | None = None,
    allow: Iterable[str] = (),
) -> Defense:
    """A Defense from a bundle, every byte verified. `classifier` is needed only if it is not one of ours.

    `on_small_batch` overrides the bundle's policy for batches that are too small to test ("denoise", "classify", "error"),
    `rescue` what it does with a flagged batch ("suspects", "batch", "refuse"). A bundle may name the factory of a classifier
    that is not ours; it is run only if its module is in `allow`.
    Raises BundleError, naming the file, for a bundle that is damaged, incomplete or of another format.
    """
    asked = {"on_small_batch": (on_small_batch, SmallBatchPolicy), "rescue": (rescue, Rescue)}
    given = {name: value for name, (value, _) in asked.items() if value is not None}
    for name, value in given.items():
        check_choice(name, value, get_args(asked[name][1]))
    parts = read_bundle(path, classifier, features, allow)
    parts = replace(parts, config=parts.config.model_copy(update=given))
    return Defense(**vars(parts)).to(device)

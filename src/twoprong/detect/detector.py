"""The detector: a kernel, a fixed clean reference, thresholds by batch size, and a score for single images."""

import copy
import math
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from twoprong.config import DetectorConfig, Statistic
from twoprong.data.tensors import image_digests
from twoprong.detect.blame import Batch, Blame, Examples, blamed
from twoprong.detect.cached import Cached
from twoprong.detect.calibrate import Thresholds, between, calibrate, measured_sizes, with_single
from twoprong.detect.checks import (
    check_alarm,
    check_blame,
    check_finite,
    check_kernel,
    check_settings,
    check_shapes,
    check_sizes,
    check_spread,
    refuse_half,
)
from twoprong.detect.copies import once
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.loading import accept, remember
from twoprong.detect.mixtures import Test, fit_blame
from twoprong.detect.mmd import mmd2, off_diagonal_mean
from twoprong.detect.null import memberships, null_of, p_value, reached
from twoprong.detect.verdict import Verdict
from twoprong.errors import InputError, StateError
from twoprong.progress import Progress, silent
from twoprong.seeds import generator

LEAST = 10  # calibration images: of fewer, a resampled pool may be copies of one, which has no pairs and no variance


class Detector(nn.Module):
    """MMD-OPT as a test of one batch against a fixed clean reference (an unseen part of the training set).

    The statistic is MMD²_u over the whole reference, with the full cross mean at every batch size, so that thresholds of
    neighbouring sizes belong to one curve. Other `statistic`s, for constant thresholds only, are taken against as many
    reference images as the batch has, the first ones: the paper's ("paired") and the biased one of its authors' code.
    Of a single image the statistic is the score of `blame`; without one, batches from 2 images up can be judged.
    Reference and thresholds are buffers: `.to(device)` and saving come free.
    """

    reference_pixels: Tensor
    reference_features: Tensor
    sizes: Tensor
    upper: Tensor
    central: Tensor
    null: Tensor  # equally likely values of clean batches' statistic, one row per size; no row: the law is not known
    calibrated_on: Tensor  # a digest per calibration image, so that an evaluation can tell that its images are others

    def __init__(
        self, kernel: DeepKernel, reference: Sample, permutations: int = 200, statistic: Statistic = "full"
    ) -> None:
        super().__init__()
        if len(reference) < 2:
            raise InputError(f"Detector: expected a reference of 2 or more images, got {len(reference)}")
        check_finite(reference, "reference")
        check_kernel(kernel, reference.features)
        self.kernel = copy.deepcopy(kernel).centred_at(reference.features.detach().float())  # whose fit keeps its own
        self.permutations, self.kind = permutations, statistic
        self._labels: dict[tuple[object, ...], Tensor] = {}
        self._gram_seen: Cached | None = None
        self._table_seen: Cached | None = None
        self.blame: Blame | None = None
        self.register_buffer("reference_pixels", reference.pixels.detach().clone())
        self.register_buffer("reference_features", reference.features.detach().float().clone())
        self.register_buffer("calibrated_on", torch.zeros(0, dtype=torch.long))
        self._set_thresholds(Thresholds(torch.zeros(0, dtype=torch.long), *torch.zeros(2, 0, dtype=torch.double)))
        self.before: dict[str, Tensor] = {}
        self.register_load_state_dict_pre_hook(remember)
        self.register_load_state_dict_post_hook(accept)

    @property
    def reference(self) -> Sample:
        return Sample(self.reference_pixels, self.reference_features)

    @property
    def thresholds(self) -> Thresholds:
        """The calibrated table, in the CPU's memory; empty before `calibrate`."""
        return self._read().table

    @property
    def batch_sizes(self) -> range:
        """The batch sizes the detector can judge."""
        offered = self._read().offered
        if not offered:
            raise StateError("Detector has no threshold: call calibrate(clean, config, seed) first")
        return offered

    def threshold(self, size: int) -> float:
        """The statistic at which a batch of `size` is flagged. Raises InputError for a size that is not calibrated."""
        read = self._read()
        if size not in read.found:
            read.found[size] = read.table.at(size)
        return read.found[size]

    @property
    def k_reference(self) -> Tensor:
        """The reference's Gram matrix, computed once for the reference and the kernel as they are."""
        sources, seen = (*self.reference, *self.kernel.parameters(), *self.kernel.buffers()), self._gram_seen
        if seen is None or not seen.holds(sources):
            seen = self._gram_seen = Cached.of(sources, self._gram(self.reference, self.reference))
        return cast(Tensor, seen.value)

    def _read(self) -> "_Read":
        """What the thresholds say, in plain numbers: asking tensors at every batch would be most of the decision."""
        columns, seen = (self.sizes, self.upper, self.central, self.null), self._table_seen
        if seen is None or not seen.holds(columns):
            *table, null = (column.cpu() for column in columns)
            ends = table[0].tolist()
            read = _Read(Thresholds(*table), null, range(ends[0], ends[-1] + 1) if ends else range(0), {}, {})
            seen = self._table_seen = Cached.of(columns, read)
        return cast(_Read, seen.value)

    def calibrate(
        self,
        clean: Sample,
        config: DetectorConfig,
        seed: int,
        progress: Progress = silent,
        examples: Examples | None = None,
    ) -> "Detector":
        """Set the thresholds from clean images that are neither in the reference nor known to kernel and classifier.

        Where the settings name a constant threshold, as the paper does, it is taken for every size of 2 or more instead. A
        statistic that needs a reference of the batch's size is offered up to the reference's, and cannot say whom to blame.
        From `examples` the score of single images is learned: with it suspects can be named and one image can be judged.
        """
        largest = config.max_batch_size if self.kind == "full" else min(config.max_batch_size, len(self.reference))
        sizes, null = measured_sizes(min(max(2, config.min_batch_size), largest), max(2, largest)), None
        self.blame = None
        if config.threshold is not None:
            constant = torch.full((len(sizes),), config.threshold, dtype=torch.double)
            table = Thresholds(sizes, constant, constant.clone())
        else:
            table, null = self._calibrated(clean, config, sizes, seed, progress)
        self._set_thresholds(table, null)
        if examples is not None and self.kind == "full":
            self.learn_blame(clean, config, seed, examples)
            if config.min_batch_size == 1 and null is not None:
                alone = self.scores(once(clean)).detach()
                self._set_thresholds(*with_single(table, null, alone, config.false_alarm_rate, config.confidence))
        check_settings(self, config)
        return self

    def learn_blame(self, clean: Sample, config: DetectorConfig, seed: int, examples: Examples) -> None:
        """Learn the score of single images from `examples`, and its limit from `clean`. Thresholds are there already."""
        test = Test(self._gram, self.reference, self._within, self.flags, self.batch_sizes)
        self.blame = fit_blame(test, once(clean), examples, config, generator(seed, "blame"))

    def _calibrated(
        self, clean: Sample, config: DetectorConfig, sizes: Tensor, seed: int, progress: Progress
    ) -> tuple[Thresholds, Tensor]:
        if len(clean) < LEAST:
            raise InputError(f"calibrate: expected {LEAST} or more clean images, got {len(clean)}")
        check_finite(clean, "calibrate: clean images")
        self.calibrated_on = image_digests(clean.pixels).to(self.reference_features.device)
        clean = once(clean)
        return calibrate(
            self._gram(clean, clean),
            self._gram(self.reference, clean),
            self._within.item(),
            sizes,
            config.false_alarm_rate,
            config.confidence,
            generator(seed, "calibrate"),
            progress,
        )

    def scores(self, batch: Sample) -> Tensor:
        """How suspicious each image is by itself (N,): the log-odds of `blame`, differentiable in the batch."""
        if self.blame is None:
            raise StateError("Detector has no score for single images: call calibrate(..., examples=...) first")
        return self.blame.score(batch.pixels, self.kernel(self.reference, batch).mean(0))

    @torch.no_grad()
    def suspects(self, batch: Sample) -> tuple[Tensor, Tensor | None]:
        """Who is blamed for the alarm that a batch raised (a mask), and every image's score.

        A detector without scores, of an older bundle, blames all.
        """
        if self.blame is None:
            return torch.ones(len(batch), dtype=torch.bool, device=batch.pixels.device), None
        k_xy, k_yy = self._gram(self.reference, batch), self._gram(batch, batch)
        near = k_xy.mean(0)
        known = Batch(self.blame.score(batch.pixels, near), near, k_yy, self._within)
        return blamed(known, self.blame.limit.item(), self.flags, self.batch_sizes), known.scores

    @property
    def _within(self) -> Tensor:
        return off_diagonal_mean(self.k_reference)

    def statistic(self, batch: Sample) -> Tensor:
        """MMD² between the reference and a batch, of one image its score: a scalar tensor, differentiable in the batch."""
        if len(batch) == 1:
            return self.scores(batch)[0]
        rows = self.opposite(len(batch))
        return self.from_grams(self.kernel(self.reference.rows(rows), batch), self.kernel(batch, batch))

    def opposite(self, size: int) -> slice:
        """The reference images that a batch of `size` is tested against."""
        return slice(None if self.kind == "full" else size)

    def from_grams(self, k_xy: Tensor, k_yy: Tensor) -> Tensor:
        """The statistic from the kernel between reference and batch, and within the batch."""
        rows = self.opposite(len(k_yy))
        return self.compare(self.k_reference[rows, rows], k_yy, k_xy[rows])

    def compare(self, k_xx: Tensor, k_yy: Tensor, k_xy: Tensor) -> Tensor:
        """The statistic of two samples, from their Gram matrices."""
        if self.kind == "biased":
            return mmd2(k_xx, k_yy, k_xy, estimator="v")
        return mmd2(k_xx, k_yy, k_xy, paired=self.kind == "paired")

    @torch.no_grad()
    def forward(self, batch: Sample) -> Verdict:
        """Judge a batch of a calibrated size: adversarial when the statistic reaches the threshold. Copies count once."""
        batch = once(batch)
        value, times = self.measure(batch, *self.against(len(batch))).tolist()
        return self.verdict(value, times, len(batch))

    def verdict(self, value: float, times: float, size: int) -> Verdict:
        """What `measure` found on a batch of `size`, judged."""
        known, count = self._levels(size), self.permutations
        if known:
            times, count = len(known) - bisect_left(known, value), len(known)
        p = p_value(times, count) if math.isfinite(value) else math.nan
        return Verdict(self.flags(value, size), value, self.threshold(size), p)

    def measure(self, batch: Sample, k_reference: Tensor, memberships: Tensor) -> Tensor:
        """The statistic, and how many of the relabelled samples reach it: a tensor of two, so that a GPU is asked once."""
        if len(batch) == 1:
            return torch.stack([statistic := self.statistic(batch), torch.zeros_like(statistic)])
        reference = self.reference.rows(slice(len(k_reference)))
        k_xy, k_yy = self.kernel(reference, batch), self.kernel(batch, batch)
        statistic = self.compare(k_reference, k_yy, k_xy)
        if not len(memberships):
            return torch.stack([statistic, torch.zeros_like(statistic)])
        gram = torch.cat([torch.cat([k_reference, k_xy], 1), torch.cat([k_xy.T, k_yy], 1)])
        null = null_of(gram, len(reference), memberships.to(gram.dtype))
        observed = mmd2(k_reference, k_yy, k_xy, paired=False)  # which is what relabelling gives
        return torch.stack([statistic, reached(null, observed).to(statistic.dtype)])

    def against(self, size: int) -> tuple[Tensor, Tensor]:
        """What a batch of `size` is measured against: the reference's Gram matrix and the relabellings.

        The relabellings are always the same, so that one batch has one p-value, and they are kept. There are none where the
        null law is known.

        Raises InputError for a size that is not calibrated.
        """
        if size not in self.batch_sizes:
            raise InputError(
                f"batch of {size} image{'s' * (size != 1)}: expected {self.batch_sizes[0]} to {self.batch_sizes[-1]}, the "
                "sizes this detector is calibrated for; split or collect, or fit with another detector.max_batch_size"
            )
        device, rows = self.reference_features.device, self.opposite(size)
        gram, wanted = self.k_reference[rows, rows], 0 if len(self.null) else self.permutations
        key = size, len(gram), wanted, device
        if key not in self._labels:
            draw = generator(0, "permutations", device=device)
            self._labels[key] = memberships(len(gram), size, wanted, draw)
        return gram, self._labels[key]

    def flags(self, statistic: float, size: int) -> bool:
        """Whether a batch of `size` with this statistic is called adversarial: the one place that decides.

        A statistic that is no number is: one image whose features are not finite sends its whole batch the safe way.
        """
        return not (math.isfinite(statistic) and statistic < self.threshold(size))

    @classmethod
    def from_state(cls, state: dict[str, Tensor], permutations: int, statistic: Statistic = "full") -> "Detector":
        """A detector from its `state_dict()`. Raises InputError for a tensor too many, too few, or of another shape."""
        kernel = {name.removeprefix("kernel."): value for name, value in state.items() if name.startswith("kernel.")}
        try:
            fitted = DeepKernel(projection=kernel.get("projection"))
            fitted.load_state_dict(kernel)
            check_kernel(fitted, state["reference_features"])
            reference = Sample(state["reference_pixels"], state["reference_features"])
            table = Thresholds(state["sizes"], state["upper"], state["central"])
            null = state.get("null", torch.zeros(0, 0))
            check_shapes(reference, table, null)
            detector = cls(fitted.requires_grad_(False), reference, permutations, statistic)
            detector.blame = Blame.from_state(state, reference.pixels)
            detector._hold(table, null)
            digests = state.get("calibrated_on", detector.calibrated_on)
            if digests.ndim != 1 or digests.dtype != torch.long:
                raise InputError(f"not a detector's tensors: digests of {digests.dtype} {tuple(digests.shape)}")
            detector.calibrated_on = digests
            detector.load_state_dict({"calibrated_on": digests, "null": null, **state})
        except (RuntimeError, KeyError) as error:
            raise InputError(f"not a detector's tensors: {' '.join(str(error).split())}") from error
        return detector

    def _gram(self, x: Sample, z: Sample) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():  # what is kept must serve attackers' gradients later
            return self.kernel(x, z)

    def check(self) -> None:
        """Raise InputError for a detector that could never flag: what is saved or loaded is checked, whoever changed it."""
        self._check(Thresholds(self.sizes, self.upper, self.central), self.null)

    def _check(self, table: Thresholds, null: Tensor) -> None:
        check_sizes(self.kind, table.sizes, len(self.reference))
        check_shapes(self.reference, table, null)
        check_finite(self.reference, "reference")
        check_spread(self.reference.features)
        check_alarm(self.kernel, self.reference, table, null)
        check_blame(self.blame, None if self.blame is None else self.scores(self.reference), table)

    def _set_thresholds(self, table: Thresholds, null: Tensor | None = None) -> None:
        law = torch.zeros(0, 0) if null is None else null
        self._check(table, law)
        self._hold(table, law)

    def _hold(self, table: Thresholds, null: Tensor) -> None:
        for name, column in zip(("sizes", "upper", "central", "null"), (*table, null), strict=True):
            self.register_buffer(name, column.to(self.reference_features.device))

    def _levels(self, size: int) -> list[float]:
        """The null law of a batch of `size` as rising values; empty where it is not known."""
        read = self._read()
        if size not in read.levels:
            read.levels[size] = between(size, read.table.sizes, read.null).tolist() if len(read.null) else []
        return read.levels[size]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Detector":
        refuse_half(fn)
        return cast(Detector, super()._apply(fn, recurse))


class _Read(NamedTuple):
    """The table of thresholds and the null law as they were read: for which sizes, and what was asked of them."""

    table: Thresholds
    null: Tensor
    offered: range
    found: dict[int, float]
    levels: dict[int, list[float]]

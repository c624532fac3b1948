"""The detector: a kernel, a fixed clean reference, and thresholds by batch size."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from twoprong.config import DetectorConfig
from twoprong.data.tensors import image_digests
from twoprong.detect.calibrate import Thresholds, calibrate, measured_sizes
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.detect.mmd import mmd2, off_diagonal_mean
from twoprong.detect.null import memberships, null_of, p_value, reached
from twoprong.errors import InputError, StateError
from twoprong.progress import Progress, silent
from twoprong.seeds import generator

LEAST = 10  # calibration images: of fewer, a resampled pool may be copies of one, which has no pairs and no variance


@dataclass(frozen=True)
class Verdict:
    """What the test says of one batch. `p_value` is the permutation test's, beside the calibrated decision."""

    adversarial: bool
    statistic: float
    threshold: float
    p_value: float


class Detector(nn.Module):
    """MMD-OPT as a test of one batch against a fixed clean reference (an unseen part of the training set).

    The statistic is MMD²_u over the whole reference, with the full cross mean at every batch size, so that thresholds of
    neighbouring sizes belong to one curve. Reference and thresholds are buffers: `.to(device)` and saving come free.
    """

    reference_pixels: Tensor
    reference_features: Tensor
    sizes: Tensor
    upper: Tensor
    central: Tensor
    calibrated_on: Tensor  # a digest per calibration image, so that an evaluation can tell that its images are others

    def __init__(self, kernel: DeepKernel, reference: Sample, permutations: int = 200) -> None:
        super().__init__()
        if len(reference) < 2:
            raise InputError(f"Detector: expected a reference of 2 or more images, got {len(reference)}")
        self.kernel = kernel
        self.permutations = permutations
        self._labels: dict[tuple[object, ...], Tensor] = {}
        self._gram_seen: _Seen | None = None
        self._table_seen: _Seen | None = None
        self.register_buffer("reference_pixels", reference.pixels.detach().clone())
        self.register_buffer("reference_features", reference.features.detach().float().clone())
        self.register_buffer("calibrated_on", torch.zeros(0, dtype=torch.long))
        self._set_thresholds(Thresholds(torch.zeros(0, dtype=torch.long), *torch.zeros(2, 0, dtype=torch.double)))

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
            seen = self._gram_seen = _Seen.of(sources, self._gram(self.reference, self.reference))
        return cast(Tensor, seen.value)

    def _read(self) -> "_Read":
        """What the thresholds say, in plain numbers: asking tensors at every batch would be most of the decision."""
        columns, seen = (self.sizes, self.upper, self.central), self._table_seen
        if seen is None or not seen.holds(columns):
            table = Thresholds(*(column.cpu() for column in columns))
            ends = table.sizes.tolist()
            read = _Read(table, range(ends[0], ends[-1] + 1) if ends else range(0), {})
            seen = self._table_seen = _Seen.of(columns, read)
        return cast(_Read, seen.value)

    def calibrate(self, clean: Sample, config: DetectorConfig, seed: int, progress: Progress = silent) -> "Detector":
        """Set the thresholds from clean images that are neither in the reference nor known to kernel and classifier.

        Where the settings name a constant threshold, as the paper does, it is taken for every size instead.
        """
        sizes = measured_sizes(config.min_batch_size, config.max_batch_size)
        if config.threshold is not None:
            constant = torch.full((len(sizes),), config.threshold, dtype=torch.double)
            return self._set_thresholds(Thresholds(sizes, constant, constant.clone()))
        if len(clean) < LEAST:
            raise InputError(f"calibrate: expected {LEAST} or more clean images, got {len(clean)}")
        self.calibrated_on = image_digests(clean.pixels).to(self.reference_features.device)
        table = calibrate(
            self._gram(clean, clean),
            self._gram(self.reference, clean),
            off_diagonal_mean(self.k_reference).item(),
            sizes,
            config.false_alarm_rate,
            config.confidence,
            generator(seed, "calibrate"),
            progress,
        )
        return self._set_thresholds(table)

    def statistic(self, batch: Sample) -> Tensor:
        """MMD²_u between the reference and a batch of 2 or more, as a scalar tensor; differentiable in the batch."""
        return self.from_grams(self.kernel(self.reference, batch), self.kernel(batch, batch))

    def from_grams(self, k_xy: Tensor, k_yy: Tensor) -> Tensor:
        """The statistic from the kernel between reference and batch, and within the batch."""
        return mmd2(self.k_reference, k_yy, k_xy, paired=False)

    @torch.no_grad()
    def forward(self, batch: Sample) -> Verdict:
        """Judge a batch of a calibrated size: adversarial when the statistic reaches the threshold."""
        value, times = self.measure(batch, *self.against(len(batch))).tolist()
        return self.verdict(value, times, len(batch))

    def verdict(self, value: float, times: float, size: int) -> Verdict:
        """What `measure` found on a batch of `size`, judged."""
        return Verdict(self.flags(value, size), value, self.threshold(size), p_value(times, self.permutations))

    def measure(self, batch: Sample, k_reference: Tensor, memberships: Tensor) -> Tensor:
        """The statistic, and how many of the relabelled samples reach it: a tensor of two, so that a GPU is asked once."""
        k_xy, k_yy = self.kernel(self.reference, batch), self.kernel(batch, batch)
        statistic = mmd2(k_reference, k_yy, k_xy, paired=False)
        gram = torch.cat([torch.cat([k_reference, k_xy], 1), torch.cat([k_xy.T, k_yy], 1)])
        null = null_of(gram, len(self.reference), memberships.to(gram.dtype))
        return torch.stack([statistic, reached(null, statistic).to(statistic.dtype)])

    def against(self, size: int) -> tuple[Tensor, Tensor]:
        """What a batch of `size` is measured against: the reference's Gram matrix and the relabellings.

        The relabellings are always the same, so that one batch has one p-value, and they are kept.

        Raises InputError for a size that is not calibrated.
        """
        if size not in self.batch_sizes:
            raise InputError(
                f"batch of {size} image{'s' * (size != 1)}: expected {self.batch_sizes[0]} to {self.batch_sizes[-1]}, the "
                "sizes this detector is calibrated for; split or collect, or fit with another detector.max_batch_size"
            )
        device, count = self.reference_features.device, len(self.reference)
        key = size, count, self.permutations, device
        if key not in self._labels:
            draw = generator(0, "permutations", device=device)
            self._labels[key] = memberships(count, size, self.permutations, draw)
        return self.k_reference, self._labels[key]

    def flags(self, statistic: float, size: int) -> bool:
        """Whether a batch of `size` with this statistic is called adversarial: the one place that decides."""
        return statistic >= self.threshold(size)

    @classmethod
    def from_state(cls, state: dict[str, Tensor], permutations: int) -> "Detector":
        """A detector from its `state_dict()`. Raises InputError for a tensor too many, too few, or of another shape."""
        kernel = {name.removeprefix("kernel."): value for name, value in state.items() if name.startswith("kernel.")}
        try:
            fitted = DeepKernel(projection=kernel.get("projection"))
            fitted.load_state_dict(kernel)
            _check_kernel(fitted, state["reference_features"])
            reference = Sample(state["reference_pixels"], state["reference_features"])
            table = Thresholds(state["sizes"], state["upper"], state["central"])
            _check_shapes(reference, table)
            detector = cls(fitted.requires_grad_(False), reference, permutations)
            detector._set_thresholds(table)
            digests = state.get("calibrated_on", detector.calibrated_on)
            if digests.ndim != 1 or digests.dtype != torch.long:
                raise InputError(f"not a detector's tensors: digests of {digests.dtype} {tuple(digests.shape)}")
            detector.calibrated_on = digests
            detector.load_state_dict({"calibrated_on": digests, **state})
        except (RuntimeError, KeyError) as error:
            raise InputError(f"not a detector's tensors: {' '.join(str(error).split())}") from error
        return detector

    def _gram(self, x: Sample, z: Sample) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():  # what is kept must serve attackers' gradients later
            return self.kernel(x, z)

    def _set_thresholds(self, table: Thresholds) -> "Detector":
        for name, column in zip(("sizes", "upper", "central"), table, strict=True):
            self.register_buffer(name, column.to(self.reference_features.device))
        return self


class _Read(NamedTuple):
    """The table of thresholds as it was read: for which sizes, and what was asked of it."""

    table: Thresholds
    offered: range
    found: dict[int, float]


class _Seen(NamedTuple):
    """A value that was computed from tensors, and which tensors these were, so that nothing stale is ever used."""

    sources: tuple[Tensor, ...]
    versions: tuple[int | None, ...]
    value: Any

    @classmethod
    def of(cls, sources: Iterable[Tensor], value: Any) -> "_Seen":
        kept = tuple(sources)
        return cls(kept, tuple(map(_version, kept)), value)

    def holds(self, sources: Iterable[Tensor]) -> bool:
        """Whether these are the same tensors, unchanged since."""
        now = tuple(sources)
        same = len(now) == len(self.sources) and all(one is other for one, other in zip(now, self.sources, strict=True))
        return same and None not in self.versions and self.versions == tuple(map(_version, now))


def _version(tensor: Tensor) -> int | None:
    """How often a tensor was written to; None for one made in inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version


def _check_kernel(kernel: DeepKernel, features: Tensor) -> None:
    """A kernel that gives numbers on these features: one that gives NaN would never flag anything."""
    projection = kernel.projection
    if projection is not None and (projection.ndim != 2 or len(projection) != features.shape[-1] or not projection.shape[1]):
        raise InputError(f"not a detector's tensors: a projection of {tuple(projection.shape)} on {tuple(features.shape)}")
    if not all(bool(value.isfinite().all()) for value in kernel.parameters()):
        raise InputError("not a detector's tensors: expected a kernel of finite numbers")


def _check_shapes(reference: Sample, table: Thresholds) -> None:
    """What `load_state_dict` cannot know: that tensors of any length have the same one, and thresholds are numbers."""
    pixels, features = reference
    if pixels.ndim < 2 or features.ndim != 2 or len(pixels) != len(features):
        raise InputError(f"not a detector's tensors: a reference of {tuple(pixels.shape)} and {tuple(features.shape)}")
    lengths = [tuple(column.shape) for column in table]
    rising = table.sizes.ndim == 1 and not table.sizes.is_floating_point() and bool((table.sizes.diff() > 0).all())
    if not rising or len(set(lengths)) > 1 or not all(bool(column.isfinite().all()) for column in table):
        raise InputError(f"not a detector's tensors: thresholds of {lengths}, expected rising sizes and finite numbers")


UNTESTED = Verdict(adversarial=False, statistic=math.nan, threshold=math.nan, p_value=math.nan)

"""Any number of images through a defence, in order: cut into batches that can be tested, one or two in memory at a time."""

import builtins
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from twoprong.data.images import ImageLike
from twoprong.data.pictures import is_picture
from twoprong.data.tensors import Labelled
from twoprong.decision import Decision, PerImage
from twoprong.errors import InputError
from twoprong.progress import Progress, showing

Source = ImageLike | Labelled | Dataset[Any] | DataLoader[Any] | Iterable[Any]


@dataclass(frozen=True)
class BatchVerdict:
    """What the test says of one batch; `labels[verdict.slice]` are its labels. `tested` and NaN are as in `Decision`."""

    slice: builtins.slice
    adversarial: bool
    statistic: float
    threshold: float
    p_value: float
    tested: bool


@dataclass(frozen=True, repr=False, eq=False)
class Predictions(PerImage):
    """Answers for every image, in order, in the CPU's memory; and the verdict on every batch."""

    labels: Tensor
    probabilities: Tensor
    batches: tuple[BatchVerdict, ...]
    classes: tuple[str, ...] | None = None

    @cached_property
    def adversarial(self) -> Tensor:
        """For each image whether its batch was flagged (bool)."""
        sizes = torch.tensor([batch.slice.stop - batch.slice.start for batch in self.batches])
        return torch.tensor([batch.adversarial for batch in self.batches]).repeat_interleave(sizes)

    def batch_of(self, index: int) -> BatchVerdict:
        """The verdict on the batch that an image came in."""
        starts = [batch.slice.start for batch in self.batches]
        return self.batches[bisect_right(starts, range(len(self))[index]) - 1]

    def _flagged(self, index: int) -> bool:
        return bool(self.adversarial[index])

    def __repr__(self) -> str:
        flagged = sum(batch.adversarial for batch in self.batches)
        untested = sum(not batch.tested for batch in self.batches)
        verdicts = f"{flagged} of {len(self.batches)} batches flagged" + f", {untested} not tested" * (untested > 0)
        return f"Predictions({len(self):,} images, {verdicts}: {self._first()})"


def predict(
    judge: Callable[[Tensor], Decision],
    check: Callable[[Any], Tensor],
    sizes: range,
    source: Source,
    batch_size: int,
    progress: Progress | bool | None,
) -> Predictions:
    """`judge` called with batches of `batch_size`, or as many as `sizes`, which can be tested, allow.

    `check` makes a batch of what the source gives. Where a source is wrong the InputError says at which images.
    """
    if batch_size < sizes[0]:
        raise InputError(f"batch_size: expected {sizes[0]} or more, fewer cannot be tested, got {batch_size}")
    size, total = min(batch_size, sizes[-1]), _count(source)
    labels: list[Tensor] = []
    probabilities: list[Tensor] = []
    verdicts: list[BatchVerdict] = []
    classes, done = None, 0
    with showing(progress) as listen:
        for batch in rebatched(_checked(pieces(source, size), check), size, sizes):
            here = slice(done, done + len(batch))
            with _from_image(done):
                decision = judge(batch)
            labels.append(decision.labels.cpu())
            probabilities.append(decision.probabilities.cpu())
            test = (decision.adversarial, decision.statistic, decision.threshold, decision.p_value, decision.tested)
            verdicts.append(BatchVerdict(here, *test))
            classes, done = decision.classes, here.stop
            listen("predict", done, max(total, done), f"{sum(one.adversarial for one in verdicts)} flagged")
    if not done:
        raise InputError(f"images: expected at least one image, got an empty {type(source).__name__}")
    return Predictions(torch.cat(labels), torch.cat(probabilities), tuple(verdicts), classes)


def rebatched(parts: Iterable[Tensor], size: int, sizes: range) -> Iterator[Tensor]:
    """The images of parts of any length in batches of `size`; the last ones are held back and divided by `last_sizes`."""
    kept: list[Tensor] = []
    for part in parts:
        kept.append(part)
        if sum(map(len, kept)) >= 2 * size:
            whole = torch.cat(kept) if len(kept) > 1 else part
            while len(whole) >= 2 * size:
                yield whole[:size]
                whole = whole[size:]
            kept = [whole]
    if kept:
        rest = torch.cat(kept)
        yield from rest.split(last_sizes(len(rest), size, sizes))


def last_sizes(rest: int, size: int, sizes: range) -> list[int]:
    """How the last images, fewer than two batches, are divided: a remainder below half a batch joins the one before.

    Small batches are hard to judge, and the smallest cannot be tested. Where one batch would be too large it is halved;
    only where no division can be tested does a batch below the smallest size remain, for the declared policy.
    """
    over = rest - size
    if over <= 0:
        return [rest]
    if over >= max(sizes[0], size / 2):
        return [size, over]
    if rest <= sizes[-1]:
        return [rest]
    return [rest - rest // 2, rest // 2] if rest // 2 >= sizes[0] else [size, over]


def pieces(source: Any, size: int) -> Iterator[Any]:
    """What a source gives, without labels, some images at a time."""
    if isinstance(source, Labelled):
        source = source.images
    if is_picture(source):
        yield [source]
    elif isinstance(source, Tensor | np.ndarray):
        yield from (source[start : start + size] for start in range(0, len(source), size)) if source.ndim == 4 else (source,)
    elif isinstance(source, list | tuple) and _is_batch(source):
        yield from source
    elif isinstance(source, IterableDataset):
        yield from _grouped(iter(source), size)
    elif isinstance(source, DataLoader) or (isinstance(source, Iterable) and not hasattr(source, "__len__")):
        yield from map(_batch_images, source)
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        yield from _grouped((source[index] for index in range(len(source))), size)
    else:
        kind = type(source).__name__
        raise InputError(f"images: expected images, a Dataset with a length, a DataLoader or batches of images, got {kind}")


def _grouped(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Single images, or pairs (image, label), as lists of images."""
    while group := [item[0] if isinstance(item, tuple | list) and item else item for item in islice(items, size)]:
        yield group


def _batch_images(batch: Any) -> Any:
    """The images of a loader's batch: the batch itself, or what comes before the labels."""
    return batch[0] if isinstance(batch, tuple | list) and _is_batch(batch) else batch


def _is_batch(values: Sequence[Any]) -> bool:
    """Whether the first of some values is a whole batch."""
    return len(values) > 0 and isinstance(values[0], Tensor | np.ndarray) and values[0].ndim == 4


def _count(source: Any) -> int:
    """How many images a source has, for the bar; 0 where nobody knows."""
    source = source.sampler if isinstance(source, DataLoader) else source
    return len(source) if hasattr(source, "__len__") else 0


def _checked(parts: Iterable[Any], check: Callable[[Any], Tensor]) -> Iterator[Tensor]:
    done = 0
    for part in parts:
        with _from_image(done):
            checked = check(part)
        done += len(checked)
        yield checked


@contextmanager
def _from_image(start: int) -> Iterator[None]:
    """Says in an InputError where in the source the batch begins that is wrong."""
    try:
        yield
    except InputError as error:
        raise InputError(f"from image {start} on: {error}" if start else str(error)) from error

"""Any number of images through a defence, in order: cut into batches that can be tested, one or two in memory at a time.

`Predictions` of one batch after the other are the one way through; `predict` joins them, `stream` gives their images.
"""

import builtins
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from twoprong.data.images import ImageLike
from twoprong.data.pictures import is_picture
from twoprong.data.tensors import Labelled
from twoprong.decision import Decision, PerImage, Prediction
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
    """Answers for every image, in order, in the CPU's memory; and the verdict on every batch.

    `suspects` marks the images that are blamed for their batch's alarm; a refused image has the label -1.
    """

    labels: Tensor
    probabilities: Tensor
    suspects: Tensor
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
        suspects = f", {int(self.suspects.sum())} suspects" * (flagged > 0)
        return f"Predictions({len(self):,} images, {verdicts}{suspects}: {self._first()})"


class Batchwise(Protocol):
    """A defence, as far as `stream` knows it."""

    def batches(
        self, images: Source, batch_size: int, progress: Progress | bool | None, generator: torch.Generator | None
    ) -> Iterator[Predictions]: ...


def stream(
    defense: Batchwise,
    images: Source,
    batch_size: int = 100,
    progress: Progress | bool | None = None,
    generator: torch.Generator | None = None,
) -> Generator[Prediction, None, None]:
    """One `Prediction` per image, in order, as soon as its batch is judged; for sources without an end, too.

    Everything is as in `Defense.predict`, except that no answer is kept: two batches of images are all that is in memory.
    `images` may also be a generator of single images, with or without labels. A batch that has been judged stays judged: an
    InputError about a later one comes when that one is reached. `close()` ends it, and lets go of the source.
    """
    return (answer for batch in defense.batches(images, batch_size, progress, generator) for answer in batch)


def predict(batches: Iterable[Predictions]) -> Predictions:
    """The batches as one."""
    parts = list(batches)
    return Predictions(
        torch.cat([part.labels for part in parts]),
        torch.cat([part.probabilities for part in parts]),
        torch.cat([part.suspects for part in parts]),
        tuple(verdict for part in parts for verdict in part.batches),
        parts[-1].classes,
    )


def judged(
    judge: Callable[[Tensor], Decision],
    check: Callable[[Any], Tensor],
    sizes: range,
    source: Source,
    batch_size: int,
    progress: Progress | bool | None,
) -> Iterator[Predictions]:
    """`judge` called with batches of `batch_size`, or as many as `sizes`, which can be tested, allow; each as Predictions.

    `check` makes a batch of what the source gives. Where a source is wrong the InputError says at which images.
    """
    if not isinstance(batch_size, int) or batch_size < sizes[0]:
        raise InputError(f"batch_size: expected {sizes[0]} or more, fewer cannot be tested, got {batch_size}")
    size, total = min(batch_size, sizes[-1]), _count(source)

    def each() -> Iterator[Predictions]:
        done = flagged = 0
        with showing(progress) as listen:
            for batch in rebatched(_checked(pieces(source, size), check), size, sizes):
                with _from_image(done):
                    decision = judge(batch)
                here = slice(done, done + len(batch))
                done, flagged = here.stop, flagged + decision.adversarial
                listen("predict", done, max(total, done), f"{flagged} flagged")
                yield _one_batch(decision, here)
        if not done:
            raise InputError(f"images: expected at least one image, got an empty {type(source).__name__}")

    return each()


def _one_batch(decision: Decision, here: slice) -> Predictions:
    test = (decision.adversarial, decision.statistic, decision.threshold, decision.p_value, decision.tested)
    verdict = BatchVerdict(here, *test)
    by_image = (decision.labels.cpu(), decision.probabilities.cpu(), decision.suspects.cpu())
    return Predictions(*by_image, (verdict,), decision.classes)


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
        single, items = _peeked(iter(source))
        yield from _grouped(items, size) if single else map(_batch_images, items)
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Mapping):
        yield from _grouped((source[index] for index in range(len(source))), size)
    else:
        kind = type(source).__name__
        raise InputError(f"images: expected images, a Dataset with a length, a DataLoader or batches of images, got {kind}")


def _grouped(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Single images, or pairs (image, label), as lists of images."""
    while group := [item[0] if isinstance(item, tuple | list) and item else item for item in islice(items, size)]:
        yield group


def _peeked(items: Iterator[Any]) -> tuple[bool, Iterator[Any]]:
    """Whether the items are single images, by the first of them; and all of them. The first is not kept alive."""
    first = list(islice(items, 1))
    return bool(first) and _is_single(first[0]), chain(first, items)


def _is_single(item: Any) -> bool:
    """Whether an item of a stream is one image, alone or with its label, and not a batch."""
    if isinstance(item, tuple | list):
        return len(item) > 1 and _is_image(item[0]) and not all(map(_is_image, item))
    return _is_image(item)


def _is_image(value: Any) -> bool:
    return is_picture(value) or (isinstance(value, Tensor | np.ndarray) and value.ndim in (2, 3))


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

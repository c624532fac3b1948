"""What a defence says of one batch, as a whole and image by image."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

SHOWN = 5  # labels in a repr


@dataclass(frozen=True, eq=False)
class Prediction:
    """One image's answer. `adversarial` says whether the batch that it came in was flagged; no image is judged alone."""

    label: int
    name: str | None
    probability: float
    probabilities: Tensor
    adversarial: bool


class PerImage(ABC):
    """Images in order: `len(answers)`, `answers[3]`, `for answer in answers`."""

    labels: Any  # (N,)
    probabilities: Any  # (N, classes)
    classes: tuple[str, ...] | None

    @property
    def names(self) -> list[str] | None:
        """The name of each image's class; None where the names of the classes are not known."""
        return None if self.classes is None else [self.classes[label] for label in self.labels.tolist()]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Prediction:
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        label, probabilities = int(self.labels[index]), self.probabilities[index]
        name = None if self.classes is None else self.classes[label]
        return Prediction(label, name, float(probabilities[label]), probabilities, self._flagged(index % len(self)))

    def __iter__(self) -> Iterator[Prediction]:
        return (self[index] for index in range(len(self)))

    @abstractmethod
    def _flagged(self, index: int) -> bool:
        """Whether the batch of an image was flagged."""

    def _first(self) -> str:
        """The first labels, by name if they have one."""
        shown = self.labels[:SHOWN].tolist()
        words = [str(label) if self.classes is None else self.classes[label] for label in shown]
        return ", ".join(words) + ", ..." * (len(self) > SHOWN)


@dataclass(frozen=True, repr=False)
class Decision(PerImage):
    """What became of one batch. Nothing is thrown away: there are logits for every image, in order.

    `images` is what the classifier saw: the batch itself, or its denoised form. `tested` is False only where the batch was
    too small for the test and the declared policy decided; statistic, threshold and p-value are NaN then. `classes` are the
    names of the classes where the defence knows them. `decision[3]` is what is said of one image.
    """

    logits: Tensor
    images: Tensor
    adversarial: bool
    statistic: float
    threshold: float
    p_value: float
    tested: bool = True
    classes: tuple[str, ...] | None = None

    @property
    def labels(self) -> Tensor:
        return self.logits.argmax(1)

    @cached_property
    def probabilities(self) -> Tensor:
        """The softmax of the logits. A network's probabilities are no frequencies, an attacked network's least of all."""
        return self.logits.softmax(1)

    def _flagged(self, index: int) -> bool:
        return self.adversarial

    def __repr__(self) -> str:
        verdict = "flagged" if self.adversarial else "passed"
        test = f"statistic {self.statistic:.4g} / threshold {self.threshold:.4g}, p {self.p_value:.3g}"
        count = f"{len(self)} image{'s' * (len(self) != 1)}"
        return f"Decision({verdict}, {test if self.tested else 'not tested'}, {count}: {self._first()})"


def class_names(about: Any, count: int) -> tuple[str, ...] | None:
    """The names of `count` classes from what is known of a defence's making, where anybody may have put anything."""
    names = about.get("classes")
    fits = isinstance(names, Sequence) and not isinstance(names, str) and len(names) == count
    return tuple(map(str, names)) if fits else None

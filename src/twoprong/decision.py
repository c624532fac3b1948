"""What a defence says of one batch, as a whole and image by image."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

SHOWN = 5  # labels in a repr


@dataclass(frozen=True, eq=False)
class Prediction:
    """One image's answer. `adversarial` says whether its batch was flagged, `suspect` whether the image is blamed for it.

    An image that was refused, or of which the classifier's answer is no number, has the label -1, no name, and NaN for
    probabilities.
    """

    label: int
    name: str | None
    probability: float
    probabilities: Tensor
    adversarial: bool
    suspect: bool


class PerImage(ABC):
    """Images in order: `len(answers)`, `answers[3]`, `for answer in answers`."""

    labels: Any  # (N,), -1 for an image without an answer
    probabilities: Any  # (N, classes)
    suspects: Any  # (N,)
    classes: tuple[str, ...] | None

    @property
    def names(self) -> list[str | None] | None:
        """The name of each image's class, None without an answer; None where the names of the classes are not known."""
        return None if self.classes is None else [self._name(label) for label in self.labels.tolist()]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Prediction:
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        label, probabilities = int(self.labels[index]), self.probabilities[index]
        flagged, suspect = self._flagged(index % len(self)), bool(self.suspects[index])
        return Prediction(label, self._name(label), float(probabilities[label]), probabilities, flagged, suspect)

    def __iter__(self) -> Iterator[Prediction]:
        return (self[index] for index in range(len(self)))

    @abstractmethod
    def _flagged(self, index: int) -> bool:
        """Whether the batch of an image was flagged."""

    def _name(self, label: int) -> str | None:
        return None if self.classes is None or label < 0 else self.classes[label]

    def _first(self) -> str:
        """The first labels, by name if they have one."""
        words = ["refused" if label < 0 else self._name(label) or str(label) for label in self.labels[:SHOWN].tolist()]
        return ", ".join(words) + ", ..." * (len(self) > SHOWN)


@dataclass(frozen=True, repr=False)
class Decision(PerImage):
    """What became of one batch, with an answer for every image, in order.

    `suspects` marks the images that are blamed for an alarm: none of a batch that passes, but for images that cannot be
    judged (their features are no finite numbers), which take the flagged route by themselves. `scores` say how suspicious
    each image is (larger is more; None where the defence has none, and for a batch that passes unless they are asked for).
    `rejected` marks images that were refused (`rescue = "refuse"`): their label is -1, their logits are NaN; None where
    nothing ever is.
    `images` is what the classifier saw: the image itself, or its denoised form (of several draws of the noise, the first).
    `tested` is False only where the batch was too small for the test and the declared policy decided; statistic, threshold
    and p-value are NaN then. `classes` are the names of the classes where the defence knows them. `decision[3]` is what is
    said of one image.
    """

    logits: Tensor
    images: Tensor
    adversarial: bool
    statistic: float
    threshold: float
    p_value: float
    suspects: Tensor
    scores: Tensor | None = None
    rejected: Tensor | None = None
    tested: bool = True
    classes: tuple[str, ...] | None = None

    @property
    def labels(self) -> Tensor:
        """The likeliest class of each image; -1 without an answer: it was refused, or the classifier's is no number."""
        return self.logits.argmax(1).masked_fill(self.probabilities.isnan().any(1), -1)

    @cached_property
    def probabilities(self) -> Tensor:
        """The softmax of the logits. A network's probabilities are no frequencies, an attacked network's least of all."""
        return self.logits.softmax(1)

    def rows(self, index: Tensor) -> "Decision":
        """The same for some of the images, each as often as `index` names it."""
        by_image = {name: getattr(self, name) for name in ("logits", "images", "suspects", "scores", "rejected")}
        return replace(self, **{name: value[index] for name, value in by_image.items() if value is not None})

    def _flagged(self, index: int) -> bool:
        return self.adversarial

    def __repr__(self) -> str:
        blamed = int(self.suspects.sum())
        verdict = "flagged" if self.adversarial else "passed"
        verdict += f", {blamed} suspect{'s' * (blamed != 1)}" * bool(self.adversarial or blamed)
        test = f"statistic {self.statistic:.4g} / threshold {self.threshold:.4g}, p {self.p_value:.3g}"
        count = f"{len(self)} image{'s' * (len(self) != 1)}"
        return f"Decision({verdict}, {test if self.tested else 'not tested'}, {count}: {self._first()})"


def class_names(about: Any, count: int) -> tuple[str, ...] | None:
    """The names of `count` classes from what is known of a defence's making, where anybody may have put anything."""
    names = about.get("classes")
    fits = isinstance(names, Sequence) and not isinstance(names, str) and len(names) == count
    return tuple(map(str, names)) if fits else None

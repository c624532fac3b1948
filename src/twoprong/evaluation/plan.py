"""What an evaluation is: which defence, on which images, by which attacks; and the key of all that decides its numbers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any, Final, get_args

import torch
from torch import Tensor, nn

from twoprong.attacks.base import REVISION
from twoprong.attacks.norms import NORMS
from twoprong.choices import check_choice
from twoprong.config import NormName
from twoprong.data.tensors import Labelled, check_labels
from twoprong.defense import Defense
from twoprong.errors import InputError
from twoprong.evaluation.protocols import KNOWLEDGE, THREATS, Item, Setting, left_out, protocol_items
from twoprong.models.modes import evaluating
from twoprong.models.precision import Precision
from twoprong.seeds import generator
from twoprong.storage import fingerprint

FORMAT: Final = 1  # of results.json
CHECKED = {"quick": 50}  # images that sanity checks attack; of other protocols a whole batch


@dataclass(frozen=True)
class Plan:
    """What is evaluated, on what, by what. Raises InputError where these do not fit together."""

    defense: Defense
    data: Labelled
    protocol: str | Sequence[Item]
    eps: float
    norm: NormName
    batch_size: int
    count: int
    seed: int
    train: Tensor | None = None
    against: Defense | None = None
    surrogate: nn.Module | None = None
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, NORMS)
        check_choice("precision", self.precision, get_args(Precision))
        if not self.eps > 0:
            raise InputError(f"eps: expected a number above 0, got {self.eps}")
        shape = tuple(self.defense.reference_images().shape[1:])
        second = None if self.against is None else self.against.reference_images()
        for name, other in (("images", self.data.images), ("train", self.train), ("against", second)):
            if other is not None and tuple(other.shape[1:]) != shape:
                raise InputError(f"{name}: expected {shape}, as the defence was fitted on, got {tuple(other.shape[1:])}")
        with evaluating(self.defense), torch.no_grad():
            classes = self.defense.logits(self.data.images[:2], "passing").shape[-1]
        check_labels(self.data.labels, len(self.data), classes)
        for name, one in (("defense", self.defense), ("against", self.against)):
            if one is not None and self.batch_size not in one.detector.batch_sizes:
                sizes = one.detector.batch_sizes
                raise InputError(f"batch size: {name} tests {sizes[0]} to {sizes[-1]} images, got {self.batch_size}")
        if self.count < self.batch_size:
            wanted = f"at least one batch of {self.batch_size}"
            raise InputError(f"images: expected {wanted}, got {self.count}; give more images, or a smaller batch size")
        self._check_items()

    def _check_items(self) -> None:
        """What a list of somebody's own items may get wrong. Names are also those of files."""
        items, subjects = self.items(), self.setting.subjects
        files = [item.file(0) for item in items]
        wrong = [
            f"two items are called {item.name!r}" for item, file in zip(items, files, strict=True) if files.count(file) > 1
        ]
        for item in items:
            if item.threat not in THREATS:
                wrong.append(f"{item.name}: threat {item.threat!r}, expected one of {', '.join(THREATS)}")
            if item.target not in subjects:
                wrong.append(f"{item.name}: target {item.target!r}, expected one of {', '.join(subjects)}")
        if not any(self.counts(item) for item in items):
            wrong.append(
                f"no item with all slots within the budget of this run, {self.norm} {self.eps:.4g}: nothing is a worst case"
            )
        if wrong:
            raise InputError(f"protocol: {'; '.join(dict.fromkeys(wrong))}")

    def counts(self, item: Item) -> bool:
        """Whether an item counts in the worst case: all slots, within the headline budget. Nobody has to use all of it."""
        within = item.attack.norm == self.norm and item.attack.eps <= self.eps
        return item.threat in KNOWLEDGE and item.share is None and within

    @property
    def name(self) -> str:
        return self.protocol if isinstance(self.protocol, str) else "custom"

    @property
    def setting(self) -> Setting:
        extra = {"magnet": self.train, "against": self.against, "surrogate": self.surrogate}
        there = [name for name, given in extra.items() if given is not None]
        flagged, passing = self.defense.flagged.kind, None
        if self.defense.layered:
            passing, there = self.defense.passing.kind, [self.defense.passing.kind, *there]
        subjects = ("defense", "bare", flagged, "reject", *there)
        layered = self.against is not None and self.against.layered
        large = max(self.data.images.shape[2:]) > 64
        return Setting(self.eps, self.norm, subjects, self.batch_size, large, flagged, passing, layered)

    @property
    def checked(self) -> int:
        """How many images the sanity checks attack."""
        return max(self.defense.detector.batch_sizes[0], CHECKED.get(self.name, self.batch_size))

    def items(self) -> list[Item]:
        return protocol_items(self.protocol, self.setting) if isinstance(self.protocol, str) else list(self.protocol)

    def left_out(self) -> list[dict[str, str]]:
        return left_out(self.protocol, self.setting) if isinstance(self.protocol, str) else []

    def batches(self) -> list[Tensor]:
        """The batches that are attacked, as indices: formed once, whole ones only."""
        order = torch.randperm(len(self.data), generator=generator(self.seed, "batches"))
        return list(order[: self.count - self.count % self.batch_size].split(self.batch_size))

    @cached_property
    def key(self) -> str:
        """A digest of everything that decides the numbers."""
        given = [one for one in (self.against, self.surrogate, self.train) if one is not None]
        settings = [self.name, self.eps, self.norm, self.batch_size, self.count, self.seed, self.precision]
        attacks = [
            [item.name, item.threat, item.target, item.key, item.share, item.keep, item.curve, item.settings()]
            for item in self.items()
        ]
        both = [one for one in (self.defense, self.against) if one is not None]
        routes = [[route.kind, route.settings()] for one in both for route in (one.passing, one.flagged)]
        configs = [[one.config.model_dump(mode="json"), one.extractor.source] for one in both]
        made = [FORMAT, REVISION, metadata.version("twoprong"), self.data.images.device.type]
        return fingerprint(
            self.defense, self.data.images, self.data.labels, *given, settings, attacks, _plain([configs, routes]), made
        )


def _plain(value: Any) -> Any:
    """A function (a source of features) by its name: all that JSON can say of it."""
    return json.loads(json.dumps(value, default=lambda made: getattr(made, "__qualname__", type(made).__name__)))

"""The course of an evaluation: all that decides its numbers, and the pieces they are made of, each computed once."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Any, cast

import torch
from torch import Tensor, nn

from twoprong.attacks.base import REVISION, evaluating
from twoprong.attacks.norms import NORMS
from twoprong.attacks.partial import Partial
from twoprong.attacks.target import Target, as_target
from twoprong.data.tensors import Labelled, check_labels
from twoprong.defense import Defense
from twoprong.errors import InputError
from twoprong.evaluation.accelerated import accelerated
from twoprong.evaluation.clock import Clock
from twoprong.evaluation.magnet import MagNet, train_magnet
from twoprong.evaluation.measure import partition
from twoprong.evaluation.protocols import KNOWLEDGE, THREATS, Item, Setting, left_out, protocol_items
from twoprong.evaluation.store import Piece, Store
from twoprong.evaluation.strips import SHOWN
from twoprong.evaluation.subjects import judge_all, subjects_of
from twoprong.evaluation.tally import slots, tally
from twoprong.models.precision import Precision
from twoprong.progress import Progress
from twoprong.seeds import generator
from twoprong.storage import fingerprint

FORMAT = 1
NO_GRADIENT = (  # in torch's words: the only reasons for which an attack may be left out
    "does not require grad",
    "not have been used in the graph",
    "Inference tensors cannot be saved",
    "on Tensor that requires grad",
    "the derivative for",
)
CLEAN_COST, UNTOUCHED_COST, MAGNET_COST, STUDY_COST, CHECKS_COST = 1.0, 3.0, 100.0, 300.0, 1500.0  # beside Item.cost


@dataclass(frozen=True)
class Plan:
    """What is evaluated, on what, by what. Raises InputError where these do not fit together."""

    defense: Defense
    data: Labelled
    protocol: str | Sequence[Item]
    eps: float
    norm: str
    batch_size: int
    count: int
    seed: int
    train: Tensor | None = None
    against: Defense | None = None
    surrogate: nn.Module | None = None
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise InputError(f"norm: expected one of {', '.join(NORMS)}, got {self.norm!r}")
        if not self.eps > 0:
            raise InputError(f"eps: expected a number above 0, got {self.eps}")
        shape = tuple(self.defense.reference_images().shape[1:])
        second = None if self.against is None else self.against.reference_images()
        for name, other in (("images", self.data.images), ("train", self.train), ("against", second)):
            if other is not None and tuple(other.shape[1:]) != shape:
                raise InputError(f"{name}: expected {shape}, as the defence was fitted on, got {tuple(other.shape[1:])}")
        with evaluating(self.defense), torch.no_grad():
            classes = self.defense.logits(self.data.images[:2], "clean").shape[-1]
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
        files = [_piece_name(item, 0) for item in items]
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
        subjects = ("defense", "bare", "denoiser", "reject", *there)
        return Setting(self.eps, self.norm, subjects, self.batch_size, large=max(self.data.images.shape[2:]) > 64)

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
        configs = [[one.config.model_dump(mode="json"), one.features.source] for one in both]
        made = [FORMAT, REVISION, metadata.version("twoprong"), self.data.images.device.type]
        return fingerprint(
            self.defense, self.data.images, self.data.labels, *given, settings, attacks, _plain(configs), made
        )


def _plain(value: Any) -> Any:
    """A function (a source of features) by its name: all that JSON can say of it."""
    return json.loads(json.dumps(value, default=lambda made: getattr(made, "__qualname__", type(made).__name__)))


class Course:
    """A plan being carried out: every piece is read from the store, or computed and put there."""

    def __init__(self, plan: Plan, store: Store, progress: Progress) -> None:
        self.plan, self.store = plan, store
        self.items, self.not_run = plan.items(), plan.left_out()
        # Formed once and stored: whoever resumes or looks later has the very same batches.
        formed = store.piece("batches", lambda: ({"indices": torch.stack(plan.batches())}, {}))[0]
        self.batches = list(formed["indices"])
        whole = len(plan.data) // plan.batch_size
        total = len(self.batches) * (UNTOUCHED_COST + sum(item.cost() for item in self.items)) + whole * CLEAN_COST
        self.clock = Clock(progress, total + STUDY_COST + CHECKS_COST + (MAGNET_COST if plan.train is not None else 0))
        magnet = self._magnet()
        self.subjects = subjects_of(plan.defense, magnet, plan.against)
        self.targets = self._targets(magnet)

    def piece(
        self, name: str, part: str, cost: float, make: Callable[[], Piece]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A piece by name; `part` is what its seconds and its progress are booked on."""
        fresh = not self.store.has(name)

        def timed() -> Piece:
            start = time.perf_counter()
            tensors, numbers = make()
            return tensors, {"seconds": round(time.perf_counter() - start, 3), **numbers}

        tensors, numbers = self.store.piece(name, timed)
        self.clock.add(part, cost, numbers["seconds"], fresh)
        return tensors, numbers

    def _targets(self, magnet: MagNet | None) -> dict[str, Target]:
        """What attacks compute on, by name: the subjects, or their fast forms, and the surrogate."""
        plan = self.plan
        defense = accelerated(plan.defense, plan.precision, plan.data.images)
        against = None if plan.against is None else accelerated(plan.against, plan.precision, plan.data.images)
        named = subjects_of(cast(Defense, defense), magnet, cast(Defense | None, against))
        targets = {name: subject.target for name, subject in named.items()}
        if plan.surrogate is not None:
            targets["surrogate"] = as_target(accelerated(plan.surrogate, plan.precision, plan.data.images))
        return targets

    def part(self, number: int) -> Labelled:
        """A batch that is attacked."""
        return self.plan.data[self.batches[number].to(self.plan.data.images.device)]

    def chosen(self) -> Labelled:
        """All images that are attacked, batch after batch."""
        return self.plan.data[torch.cat(self.batches).to(self.plan.data.images.device)]

    def _magnet(self) -> MagNet | None:
        plan = self.plan
        if plan.train is None:
            return None
        train, rate = plan.train, plan.defense.config.detector.false_alarm_rate

        def make() -> Piece:
            return train_magnet(plan.defense.classifier, train, rate, plan.seed).state_dict(), {}

        magnet = MagNet(plan.defense.classifier, train.shape[1])
        magnet.load_state_dict(self.piece("magnet", "magnet", MAGNET_COST, make)[0])
        return magnet.to(train.device).eval()

    def clean(self) -> dict[str, Any]:
        """All images given, in one random partition, one draw of the noise: the `clean` part of results.json."""
        plan = self.plan
        parts = partition(len(plan.data), plan.batch_size, generator(plan.seed, "clean"))
        found = []
        for number, batch in enumerate(parts):

            def make(batch: Tensor = batch, number: int = number) -> Piece:
                part = plan.data[batch.to(plan.data.images.device)]
                judged = judge_all(self.subjects, part.images, part.labels, plan.seed, "clean", number, draws=1)
                return {}, {"subjects": judged}

            found.append(self.piece(f"clean/{number:05d}", "clean", CLEAN_COST, make)[1]["subjects"])
        return {
            "images": len(parts) * plan.batch_size,
            "batches": len(parts),
            "subjects": {name: tally([entry[name] for entry in found]) for name in self.subjects},
        }

    def untouched(self) -> list[dict[str, Any]]:
        """The batches that are attacked, before any attack, before every subject."""

        def make(number: int) -> Piece:
            part = self.part(number)
            return {}, {"subjects": judge_all(self.subjects, part.images, part.labels, self.plan.seed, "untouched", number)}

        return [
            self.piece(f"untouched/{number:05d}", "clean", UNTOUCHED_COST, lambda n=number: make(n))[1]["subjects"]  # type: ignore[misc]
            for number in range(len(self.batches))
        ]

    def attack(self, item: Item, untouched: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """One attack over all batches, an entry of `attacks`; None where it cannot run, which `not_run` then says."""
        records = []
        for number in range(len(self.batches)):
            try:
                records.append(self._attacked(item, number)[1])
            except RuntimeError as error:
                if not any(words in str(error) for words in NO_GRADIENT):
                    raise
                self.not_run.append({"name": item.name, "why": f"no gradient: {str(error).splitlines()[0]}"})
                return None
        by_subject = {name: [record["subjects"][name] for record in records] for name in self.subjects}
        taken = [record["slots"] for record in records]
        partial = None
        if item.share is not None:
            partial = {
                name: slots(entries, [batch[name] for batch in untouched], taken) for name, entries in by_subject.items()
            }
        return {
            "name": item.name,
            "threat_model": item.threat,
            "attack": item.key,
            "target": item.target,
            "settings": item.settings(),
            "eps": item.attack.eps,
            "share": item.share,
            "in_worst_case": self.plan.counts(item),
            "subjects": {name: tally(entries) for name, entries in by_subject.items()},
            "slots": partial,
            "seconds": round(sum(record["seconds"] for record in records), 2),
            "queries": sum(record["queries"] for record in records) / len(torch.cat(self.batches)),
            "batches": records,
        }

    def images(self, item: Item, number: int) -> Tensor:
        """What an attack that has run made of a batch: all of it for `keep`, the first few otherwise."""
        return self.store.read(_piece_name(item, number))[0]["images"].to(self.plan.data.images.device)

    def _attacked(self, item: Item, number: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        plan = self.plan

        def make() -> Piece:
            part, device = self.part(number), plan.data.images.device
            draw = generator(plan.seed, "attack", item.name, number, device=device)
            result = item.attack(self.targets[item.target], part.images, part.labels, draw)
            taken = None
            if isinstance(item.attack, Partial):  # the first thing that it draws
                again = generator(plan.seed, "attack", item.name, number, device=device)
                taken = item.attack.slots(part.images, again).tolist()
            return {"images": result.images if item.keep else result.images[:SHOWN]}, {
                "number": number,
                "queries": result.queries,
                "distance": item.attack.ball.size(result.images - part.images).max().item(),
                "lowest": result.images.min().item(),
                "highest": result.images.max().item(),
                "slots": taken,
                "subjects": judge_all(self.subjects, result.images, part.labels, plan.seed, item.name, number),
            }

        return self.piece(_piece_name(item, number), item.name, item.cost(), make)


def _piece_name(item: Item, number: int) -> str:
    name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in item.name)
    return f"attacks/{name}/{number:05d}"

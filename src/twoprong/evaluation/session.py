"""A plan being carried out: the pieces an evaluation is made of, each computed once."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from twoprong.attacks.partial import Partial
from twoprong.attacks.target import Target, as_target
from twoprong.data.tensors import Labelled
from twoprong.defense import Defense
from twoprong.evaluation.accelerated import accelerated
from twoprong.evaluation.baselines.magnet import MagNet, train_magnet
from twoprong.evaluation.clock import Clock, Work
from twoprong.evaluation.pieces import Piece, Pieces
from twoprong.evaluation.plan import Plan
from twoprong.evaluation.protocols import Item
from twoprong.evaluation.scores import divergence, slots, summarise
from twoprong.evaluation.subjects import judge_all, subjects_of
from twoprong.measure import partition
from twoprong.progress import Progress
from twoprong.report.pictures import SHOWN
from twoprong.results.evaluation import AttackedBatch, AttackEntry, Clean, NotRun
from twoprong.results.scores import BatchScore
from twoprong.seeds import generator

NO_GRADIENT = (  # in torch's words: the only reasons for which an attack may be left out
    "does not require grad",
    "not have been used in the graph",
    "Inference tensors cannot be saved",
    "on Tensor that requires grad",
    "the derivative for",
)
# In the unit of Item.cost, passes of a batch; MagNet's training is in images.
CLEAN_COST, UNTOUCHED_COST, MAGNET_COST, STUDY_COST, CHECKS_COST = 3.0, 10.0, 20_000.0, 300.0, 50.0
CONVERGENCE = 3.0  # runs of the strongest attack to see whether it has converged: one, or seven


class Session:
    """A plan being carried out: every piece is read from the store, or computed and put there."""

    def __init__(self, plan: Plan, store: Pieces, progress: Progress) -> None:
        self.plan, self.store = plan, store
        self.items = plan.items()
        self.not_run = [NotRun(**part) for part in plan.left_out()]
        # Formed once and stored: whoever resumes or looks later has the very same batches.
        formed = store.piece("batches", lambda: ({"indices": torch.stack(plan.batches())}, {}))[0]
        self.batches = list(formed["indices"])
        self.clock = Clock(progress, self._work())
        magnet = self._magnet()
        self.subjects = subjects_of(plan.defense, magnet, plan.against)
        self.targets = self._targets(magnet)

    def _work(self) -> Iterator[Work]:
        """What is to be done, for the clock."""
        plan, batches = self.plan, len(self.batches)
        if plan.train is not None:
            yield Work("magnet", "magnet", MAGNET_COST / plan.batch_size)
        yield Work("clean", "clean", len(plan.data) // plan.batch_size * CLEAN_COST + batches * UNTOUCHED_COST)
        for item in self.items:
            yield Work(item.name, item.kind, batches * item.cost())
        yield Work("detector study", "detector study", STUDY_COST)
        yield Work("sanity checks", "sanity checks", 2 * CHECKS_COST)
        own = [item for item in self.items if plan.counts(item) and item.target == "defense"]
        if own:  # nobody knows yet which one will be the strongest
            longest = max(own, key=Item.cost)
            share = min(1.0, plan.checked / plan.batch_size)
            yield Work("convergence", longest.kind, CONVERGENCE * share * longest.cost())

    def piece(
        self, name: str, group: str, cost: float, make: Callable[[], Piece], part: str | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A piece by name; `group` is what its progress is booked on, `part` its seconds, where that is another."""

        def timed() -> Piece:
            start = time.perf_counter()
            tensors, numbers = make()
            return tensors, {"seconds": round(time.perf_counter() - start, 3), **numbers}

        tensors, numbers = self.store.piece(name, timed)
        self.clock.add(group, cost, numbers["seconds"], part)
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
        magnet.load_state_dict(self.piece("magnet", "magnet", MAGNET_COST / plan.batch_size, make)[0])
        return magnet.to(train.device).eval()

    def clean(self) -> Clean:
        """All images given, in one random partition, one draw of the noise."""
        plan = self.plan
        parts = partition(len(plan.data), plan.batch_size, generator(plan.seed, "clean"))
        found = []
        for number, batch in enumerate(parts):

            def make(batch: Tensor = batch, number: int = number) -> Piece:
                part = plan.data[batch.to(plan.data.images.device)]
                judged = judge_all(self.subjects, part.images, part.labels, plan.seed, "clean", number, draws=1)
                return {}, {"subjects": _plain(judged)}

            found.append(_scores(self.piece(f"clean/{number:05d}", "clean", CLEAN_COST, make)[1]))
        return Clean(
            images=len(parts) * plan.batch_size,
            batches=len(parts),
            subjects={name: summarise([batch[name] for batch in found]) for name in self.subjects},
        )

    def untouched(self) -> list[dict[str, BatchScore]]:
        """The batches that are attacked, before any attack, before every subject."""

        def make(number: int) -> Piece:
            part = self.part(number)
            judged = judge_all(self.subjects, part.images, part.labels, self.plan.seed, "untouched", number)
            return {}, {"subjects": _plain(judged)}

        return [
            _scores(self.piece(f"untouched/{number:05d}", "clean", UNTOUCHED_COST, lambda n=number: make(n))[1])  # type: ignore[misc]
            for number in range(len(self.batches))
        ]

    def attacks(self, untouched: Sequence[dict[str, BatchScore]]) -> list[tuple[Item, AttackEntry]]:
        """Every attack that can run, over all batches; `not_run` says which cannot."""
        done = self.attacked(self.pairs())
        return [(item, self._entry(item, done[item.name], untouched)) for item in self.items if item.name in done]

    def pairs(self) -> list[tuple[Item, int]]:
        """Every attack on every batch, the batch by its number.

        Batch after batch, not attack after attack: after the first one the clock knows what each attack takes.
        """
        return [(item, number) for number in range(len(self.batches)) for item in self.items]

    def attacked(self, pairs: Iterable[tuple[Item, int]]) -> dict[str, list[AttackedBatch]]:
        """These attacks on these batches, by the attack's name; one that cannot run is left out."""
        done: dict[str, list[AttackedBatch]] = {item.name: [] for item in self.items}
        for item, number in pairs:
            if item.name not in done:
                continue
            try:
                done[item.name].append(self._attacked(item, number))
            except RuntimeError as error:
                if not any(words in str(error) for words in NO_GRADIENT):
                    raise
                self.not_run.append(NotRun(name=item.name, why=f"no gradient: {str(error).splitlines()[0]}"))
                self.clock.expect(Work(item.name, item.kind, 0.0))
                del done[item.name]
        return done

    def some(self, part: int, parts: int) -> int:
        """Part `part` (from 1 on) of `parts` of the attacks on batches; how many these are.

        They are dealt out by their cost, the dearest first, so that all parts take about the same time.
        """
        shares: list[list[tuple[Item, int]]] = [[] for _ in range(parts)]
        loads = [0.0] * parts
        for item, number in sorted(self.pairs(), key=lambda pair: -pair[0].cost()):
            least = loads.index(min(loads))
            shares[least].append((item, number))
            loads[least] += item.cost()
        mine = shares[part - 1]
        self.clock.waiting.clear()
        for item in self.items:
            self.clock.expect(Work(item.name, item.kind, sum(one.name == item.name for one, _ in mine) * item.cost()))
        self.attacked(mine)
        return len(mine)

    def _entry(self, item: Item, batches: list[AttackedBatch], untouched: Sequence[dict[str, BatchScore]]) -> AttackEntry:
        """One attack over all batches."""
        by_subject = {name: [batch.subjects[name] for batch in batches] for name in self.subjects}
        taken = [batch.slots for batch in batches if batch.slots is not None]
        partial = None
        if item.share is not None:
            partial = {
                name: slots(scores, [batch[name] for batch in untouched], taken) for name, scores in by_subject.items()
            }
        summary = {name: summarise(scores) for name, scores in by_subject.items()}
        far = None
        if partial is None and "bare" in summary:
            far = divergence(summary["bare"], summarise([batch["bare"] for batch in untouched]))
        return AttackEntry(
            name=item.name,
            threat_model=item.threat,
            attack=item.key,
            target=item.target,
            settings=item.settings(),
            eps=item.attack.eps,
            share=item.share,
            in_worst_case=self.plan.counts(item),
            subjects=summary,
            slots=partial,
            divergence=far,
            seconds=round(sum(batch.seconds for batch in batches), 2),
            queries=sum(batch.queries for batch in batches) / len(torch.cat(self.batches)),
            batches=batches,
        )

    def images(self, item: Item, number: int) -> Tensor:
        """What an attack that has run made of a batch: all of it for `keep`, the first few otherwise."""
        return self.store.read(item.file(number))[0]["images"].to(self.plan.data.images.device)

    def _attacked(self, item: Item, number: int) -> AttackedBatch:
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
                "subjects": _plain(judge_all(self.subjects, result.images, part.labels, plan.seed, item.name, number)),
            }

        return AttackedBatch.model_validate(self.piece(item.file(number), item.name, item.cost(), make)[1])


def _plain(judged: dict[str, BatchScore]) -> dict[str, Any]:
    """Scores as a piece keeps them, and `_scores` back."""
    return {name: score.as_dict() for name, score in judged.items()}


def _scores(numbers: dict[str, Any]) -> dict[str, BatchScore]:
    return {name: BatchScore.model_validate(score) for name, score in numbers["subjects"].items()}

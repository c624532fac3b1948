"""What an evaluation compares: the defence, its parts by themselves, and other defences. Each is a Target."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from twoprong.attacks.target import Plain, Target
from twoprong.defense import Defense
from twoprong.evaluation.baselines.parts import Rejecting
from twoprong.models.modes import evaluating
from twoprong.results.scores import BatchScore
from twoprong.seeds import generator
from twoprong.whitebox import OneRoute

DRAWS = 10  # noise draws that every attacked batch is scored on


@dataclass(frozen=True)
class Subject:
    """A target under comparison; `draws` is 1 where nothing is random."""

    target: Target
    draws: int = DRAWS


def subjects_of(defense: Defense, magnet: Target | None = None, against: Defense | None = None) -> dict[str, Subject]:
    """The defence and what it is measured against, by name."""
    named: dict[str, Subject] = {
        "defense": Subject(defense),
        "bare": Subject(Plain(defense.classifier), 1),
        defense.flagged.kind: Subject(OneRoute(defense, "flagged")),
        "reject": Subject(Rejecting(defense), 1),
    }
    if defense.layered:
        named[defense.passing.kind] = Subject(OneRoute(defense, "passing"))
    if magnet is not None:
        named["magnet"] = Subject(magnet, 1)
    if against is not None:
        named["against"] = Subject(against)
    return named


def judge(subject: Subject, images: Tensor, labels: Tensor, draw: torch.Generator, draws: int | None = None) -> BatchScore:
    """A batch before a subject, on every draw."""
    with evaluating(subject.target):
        outcomes = [subject.target.decide(images, draw) for _ in range(draws or subject.draws)]
    refused = [getattr(outcome, "rejected", None) for outcome in outcomes]
    rejected = None if refused[0] is None else torch.stack([row for row in refused if row is not None])
    correct = torch.stack([outcome.logits.argmax(1) == labels for outcome in outcomes])
    if rejected is not None:
        correct &= ~rejected
    statistic = outcomes[0].statistic if subject.target.coupled else None
    return BatchScore(
        correct=correct.sum(0).tolist(),
        rejected=None if rejected is None else rejected.sum(0).tolist(),
        by_draw=correct.double().mean(1).tolist(),
        flagged=outcomes[0].adversarial if subject.target.coupled else None,
        statistic=statistic if statistic is not None and math.isfinite(statistic) else None,  # NaN is no JSON
    )


def judge_all(
    subjects: Mapping[str, Subject], images: Tensor, labels: Tensor, seed: int, *name: object, draws: int | None = None
) -> dict[str, BatchScore]:
    """A batch before every subject, each with a stream of its own, so that one more or less changes no other's numbers."""
    return {
        key: judge(subject, images, labels, generator(seed, "score", key, *name, device=images.device), draws)
        for key, subject in subjects.items()
    }

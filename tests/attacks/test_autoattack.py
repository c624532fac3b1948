from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from twoprong.attacks.autoattack import AutoAttack, AutoAttackRand, Sequence
from twoprong.attacks.base import Attack, AttackResult
from twoprong.attacks.target import Plain, PlainOutcome
from twoprong.seeds import generator

EPS = {"linf": 0.1, "l2": 0.9}
SMALL = {"steps": 8, "square_steps": 30}


class Watched(Plain):
    """Keeps the batches it is shown; with a `shift` the average of a batch moves the logits of all its images."""

    def __init__(self, model, coupled, shift=0.0):
        super().__init__(model)
        self.coupled, self.shift, self.seen = coupled, shift, []

    def logits(self, images, route=None, draws=1, generator=None):
        self.seen.append(images.detach())
        logits = self.model(images)
        return (logits + self.shift * logits.mean(0))[None]

    def decide(self, images, generator=None):
        return PlainOutcome(self.logits(images)[0].detach())


def test_the_standard_version():
    attack = AutoAttack(eps=0.1, norm="l2")
    assert [type(part).__name__ for part in attack.attacks()] == ["APGD", "APGDT", "FABT", "Square"]
    assert [part.steps for part in attack.attacks()] == [100, 100, 100, 5000]
    assert {(part.eps, part.norm) for part in attack.attacks()} == {(0.1, "l2")}
    assert [getattr(part, "loss", None) for part in attack.attacks()[:1]] == ["ce"]


def test_the_rand_version():
    parts = AutoAttackRand(eps=0.1).attacks()
    assert [(type(part).__name__, part.loss, part.steps, part.draws) for part in parts] == [
        ("APGD", "ce", 100, 20),
        ("APGDDLR", "dlr", 100, 20),
    ]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_is_at_least_each_of_its_parts(digits_model, norm):
    """The first part sees the same images and draws, so whatever it fools stays fooled; the rest can only add."""
    model, test = digits_model
    part = test[:40]
    attack = AutoAttack(eps=EPS[norm], norm=norm, targets=2, **SMALL)
    together = attack(model, part.images, part.labels, generator(0))
    first = attack.attacks()[0](model, part.images, part.labels, generator(0))
    assert not (first.success & ~together.success).any()
    assert together.success.sum() > first.success.sum()


@dataclass(frozen=True, kw_only=True)
class Brighten(Attack):
    """Adds `by`, and keeps what it was given."""

    by: float = 0.1
    given: ClassVar[list[list[float]]] = []

    def perturb(self, target, images, labels, generator):
        self.given.append(images[:, 0, 0, 0].tolist())
        return images + self.by


@dataclass(frozen=True, kw_only=True)
class Thrice(Sequence):
    def attacks(self):
        return tuple(Brighten(eps=1, by=by) for by in (0.25, 0.5, 0.0))


@pytest.mark.parametrize("coupled", [False, True])
def test_who_is_attacked_further(coupled):
    """Wrong above 0.8. One by one, survivors only, each in its place; in a batch everyone, and the best batch is kept."""
    images = torch.tensor([0.25, 0.875, 0.625, 0.375])[:, None, None, None].expand(4, 1, 2, 2)
    target = Watched(lambda x: torch.stack([0.8 - x[:, 0, 0, 0], x[:, 0, 0, 0] - 0.8], 1), coupled)
    Brighten.given.clear()
    result = Thrice(eps=1)(target, images, torch.zeros(4, dtype=torch.long))
    everyone = [0.25, 0.875, 0.625, 0.375]
    if coupled:
        assert Brighten.given == [everyone] * 3
        assert result.images[:, 0, 0, 0].tolist() == [0.75, 1, 1, 0.875]
    else:
        assert Brighten.given == [[0.25, 0.625, 0.375], [0.25, 0.375], [0.25]]
        assert result.images[:, 0, 0, 0].tolist() == [0.75, 0.875, 0.875, 0.875]
    assert result.success.tolist() == [False, True, True, True]


@pytest.mark.parametrize("kind", [AutoAttack, AutoAttackRand])
def test_behind_a_batch_test_whole_batches_are_compared(build_model, batch, kind):
    model, (images, _) = build_model(), batch(10)
    target = Watched(model, coupled=True, shift=0.5)
    labels = target.logits(images)[0].argmax(1)
    settings = SMALL if kind is AutoAttack else {"steps": 8}
    attack = kind(eps=0.05, **settings)
    result = attack(target, images, labels, generator(0))
    assert {len(x) for x in target.seen} == {10}
    for part in attack.attacks()[:1]:
        alone: AttackResult = part(target, images, labels, generator(0))
        assert result.success.sum() >= alone.success.sum() > 0


def test_nothing_left_is_nothing_to_do(build_model, batch):
    model, (images, _) = build_model(), batch(4)
    labels = (model(images).argmax(1) + 1) % 4
    result = AutoAttack(eps=0.1)(model, images, labels)
    assert torch.equal(result.images, images)
    assert result.queries == 8


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_few_classes_three_channels_and_no_gradient(build_model, batch, classes, norm):
    images, labels = batch(2, channels=3, classes=classes)
    for model in (build_model(3, classes), lambda x: 0 * x.flatten(1)[:, :classes]):
        found = AutoAttack(eps=EPS[norm], norm=norm, **SMALL)(model, images, labels, generator(0)).images
        assert found.isfinite().all()

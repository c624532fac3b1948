import copy
from dataclasses import replace

import pytest
import torch

from twoprong.defense import Defense
from twoprong.demo import knowing as module
from twoprong.demo.knowing import IMAGES, knowing
from twoprong.routes import Gated, Robust


@pytest.fixture(autouse=True)
def budget(monkeypatch):
    """The digits are attacked at a budget made for them, in few steps."""
    for name in ("PAPER", "HARDENED"):
        called, attack = getattr(module, name)
        monkeypatch.setattr(module, name, (called, replace(attack, eps=0.3, steps=10)))


@pytest.fixture
def hardened(defense):
    """The same test before a gate, whose robust network is no better than the other one."""
    robust = copy.deepcopy(defense.classifier)
    routes = {"passing": Gated(defense.classifier, robust, 0.1), "flagged": Robust(robust)}
    return Defense(**vars(replace(defense.parts, **routes)))


def test_each_defence_meets_the_attack_that_is_made_for_it_on_the_same_images(defense, hardened, digits):
    rows = knowing({"one": defense, "two": hardened}, digits.test, seed=0)
    assert [(row.bundle, row.attack["name"], row.attack["eps"]) for row in rows] == [
        ("one", "evade", 0.3),
        ("two", "gate", 0.3),
    ]
    for row in rows:
        assert row.images == IMAGES
        assert row.attacked < 0.7 < row.clean
    order = torch.randperm(len(digits.test), generator=module.generator(0, "knowing"))[:IMAGES]
    part = digits.test[order]
    assert rows[0].clean == (defense(part.images).labels == part.labels).double().mean().item()


def test_the_seed_decides_every_number(defense, digits):
    first, again = (knowing({"one": defense}, digits.test, seed=0) for _ in range(2))
    assert first == again

"""An attack over all batches, and what is reported of it."""

import pytest
import torch

from twoprong.attacks.noise import Noise
from twoprong.attacks.partial import Partial
from twoprong.attacks.pgd import PGD
from twoprong.evaluation.pieces import Pieces
from twoprong.evaluation.plan import Plan
from twoprong.evaluation.protocols import Item
from twoprong.evaluation.session import Session
from twoprong.measure import wilson
from twoprong.progress import silent

EPS = 0.2
PARTIAL = Item("pgd on 4 of 40", "partial", Partial(attack=PGD(eps=EPS, steps=5), share=0.1), "bare", keep=True)


@pytest.fixture(scope="module")
def session(defense, digits):
    items = [Item("noise", "noise", Noise(eps=EPS), "bare"), PARTIAL]
    return Session(Plan(defense, digits.test[:80], items, EPS, "linf", 40, 80, 0), Pieces(None, "key"), silent)


def test_a_partial_attack_is_scored_on_the_slots_it_changed_and_on_the_others(session):
    untouched = session.untouched()
    found = session.attack(PARTIAL, untouched)
    attacked, others, before = [], [], []
    for number, batch in enumerate(found.batches):
        clean = session.part(number).images
        changed = (session.images(PARTIAL, number) != clean).flatten(1).any(1)
        assert batch.slots == changed.nonzero().flatten().tolist()
        assert len(batch.slots) == 4
        correct, calm = (torch.tensor(entry["bare"].correct) for entry in (batch.subjects, untouched[number]))
        attacked += correct[changed].tolist()
        others += correct[~changed].tolist()
        before += calm[~changed].tolist()
    stated = found.slots["bare"]
    for name, right in {"attacked": attacked, "others": others, "others_clean": before}.items():
        assert getattr(stated, name) == pytest.approx(sum(right) / len(right))
        assert getattr(stated, f"{name}_interval") == wilson(sum(right), len(right))
    assert stated.attacked < stated.others == stated.others_clean
    assert not found.in_worst_case

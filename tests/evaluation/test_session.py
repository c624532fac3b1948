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
    found = dict((item.name, entry) for item, entry in session.attacks(untouched))[PARTIAL.name]
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


def test_attacks_go_batch_by_batch_so_that_the_time_left_is_known_early(defense, digits):
    heard = []
    items = [Item("noise", "noise", Noise(eps=EPS), "bare"), Item("pgd", "bare", PGD(eps=EPS, steps=2), "bare")]
    plan = Plan(defense, digits.test[:20], items, EPS, "linf", 10, 20, 0)
    made = Session(plan, Pieces(None, "key"), lambda *said: heard.append(said[3].partition(",")[0]))
    entries = made.attacks(made.untouched())
    assert heard[-4:] == ["noise", "pgd", "noise", "pgd"]
    assert [[batch.number for batch in entry.batches] for _, entry in entries] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_parts_share_all_attacks_on_batches_and_none_is_run_twice(defense, digits, parts):
    items = [Item(f"noise {number}", "noise", Noise(eps=EPS), "bare") for number in range(3)]
    plan = Plan(defense, digits.test[:20], items, EPS, "linf", 10, 20, 0)
    ran = []
    for number in range(1, parts + 1):
        one = Session(plan, Pieces(None, "key"), silent)
        one._attacked = lambda item, batch: ran.append((item.name, batch))
        assert one.some(number, parts) in (6 // parts, -(-6 // parts))
    assert sorted(ran) == [(item.name, batch) for item in items for batch in range(2)]

"""What a plan says before anything is attacked: its key, its batches, and which items count."""

import copy
from dataclasses import replace

import pytest
import torch

from twoprong.attacks.noise import Noise
from twoprong.attacks.partial import Partial
from twoprong.attacks.pgd import BIM, PGD
from twoprong.evaluation.plan import Plan
from twoprong.evaluation.protocols import Item

EPS = 0.2
ITEM = Item("pgd", "bare", PGD(eps=EPS, steps=5), "bare")
OTHERS = [Item(f"noise {norm}", "noise", Noise(eps=EPS, norm=norm), "bare") for norm in ("linf", "l2")]
RUN = {"protocol": [*OTHERS, ITEM], "eps": EPS, "norm": "linf", "batch_size": 20, "count": 40, "seed": 0}


@pytest.fixture
def plan(defense, digits):
    """Makes a plan for 40 images, two batches of 20, with whatever is to be different."""

    def make(**changes):
        return Plan(**{"defense": defense, "data": digits.test[:60], **RUN, **changes})

    return make


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"precision": "bf16"}, {"eps": EPS + 0.1}, {"norm": "l2"}, {"batch_size": 10}, {"count": 60}],
    ids=lambda change: next(iter(change)),
)
def test_each_setting_of_the_run_is_in_the_key(plan, change):
    """The items stay the same to the letter."""
    assert plan().key == plan().key
    assert plan(**change).key != plan().key


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"threat": "transfer"},
        {"target": "denoiser"},
        {"curve": "line"},
        {"keep": True},
        {"attack": BIM(eps=EPS, steps=5, random_start=True)},  # the settings of a PGD, another attack
        {"attack": PGD(eps=EPS, steps=6)},
        {"attack": PGD(eps=EPS / 2, steps=5)},
        {"attack": Partial(attack=PGD(eps=EPS, steps=5), share=0.5)},
    ],
    ids=["name", "threat", "target", "curve", "keep", "attack", "steps", "eps", "share"],
)
def test_each_setting_of_an_item_is_in_the_key(plan, change):
    """The run stays the same to the letter: what differs is one field of one item."""
    assert plan(protocol=[*OTHERS, replace(ITEM, **change)]).key != plan().key


def test_the_protocols_name_is_in_the_key(plan):
    """Sanity checks look at other images under another name."""
    quick = plan(protocol="quick")
    assert plan(protocol=quick.items()).key != quick.key


def test_every_image_label_network_and_config_is_in_the_key(plan, defense, digits, classifier):
    data, train = digits.test[:60], digits.train.images[:30]
    images, labels = data.images.clone(), data.labels.clone()
    images[-1, 0, 0, 0] += 1e-3
    labels[-1] = (labels[-1] + 1) % 10
    patient, quiet = copy.deepcopy(defense), copy.deepcopy(defense)
    quiet.flagged.sigma = 0.0  # a route's own setting, whatever the config says
    patient.config = patient.config.model_copy(update={"on_small_batch": "classify"})
    changes = [
        {"data": replace(data, images=images)},
        {"data": replace(data, labels=labels)},
        {"train": train},
        {"train": train.flip(0)},
        {"surrogate": classifier},
        {"against": defense},
        {"against": patient},
        {"defense": patient},
        {"defense": quiet},
    ]
    keys = [plan(**change).key for change in ({}, *changes)]
    assert len(set(keys)) == len(keys)


def test_batches_are_drawn_by_the_seed_without_repeats(plan):
    first, again, other = (torch.stack(plan(seed=seed).batches()) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (2, 20)
    assert len(set(first.flatten().tolist())) == 40
    assert max(first.flatten().tolist()) >= 40  # from all images, not from the first ones


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({}, True),
        ({"attack": PGD(eps=EPS / 2)}, True),
        ({"attack": PGD(eps=EPS * 1.01)}, False),
        ({"attack": PGD(eps=EPS, norm="l2")}, False),
        ({"attack": Partial(attack=PGD(eps=EPS), share=0.5)}, False),
        ({"threat": "disrupt"}, False),
    ],
    ids=["at the budget", "below", "above", "another norm", "partial", "disrupt"],
)
def test_only_whole_attacks_within_the_budget_count_in_the_worst_case(plan, change, counts):
    assert plan().counts(replace(ITEM, **change)) is counts

import torch

from twoprong.attacks.partial import Partial
from twoprong.attacks.pgd import PGD
from twoprong.data.tensors import Labelled
from twoprong.evaluation.attack import attack_batches
from twoprong.seeds import generator


def test_the_slots_reported_are_those_that_the_attack_changed():
    images = torch.rand(30, 1, 4, 4, generator=generator(0, "images"))
    data = Labelled(images, torch.zeros(30, dtype=torch.long))
    attack = Partial(attack=PGD(eps=0.1, steps=2), share=0.2)
    found = attack_batches(attack, lambda x: x.flatten(1)[:, :3], data, 12, seed=4)
    assert [len(batch.slots) for batch in found] == [12, 12, 6]
    for batch, part in zip(found, images.split(12), strict=True):
        changed = (batch.result.images != part).flatten(1).any(1)
        assert torch.equal(batch.slots, changed)
        assert 0 < changed.sum() < len(part)

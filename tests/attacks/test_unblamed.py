import pytest
import torch

from twoprong.attacks import ATTACKS, PGD, Partial
from twoprong.attacks.unblamed import Unblamed


def test_it_fools_more_images_without_blame_than_an_attack_that_does_not_know(defense, digits):
    images, labels = digits.test.images[:60], digits.test.labels[:60]
    eps = 0.2
    draw = torch.Generator().manual_seed(0)
    known = Unblamed(eps=eps, steps=20, penalties=(1.0, 10.0), draws=2)(defense, images, labels, draw)
    naive = PGD(eps=eps, steps=20)(defense.classifier, images, labels, draw).images
    assert defense(known.images).adversarial == known.flagged

    def unblamed(found):
        return int((~defense.suspects(found) & (defense.classifier(found).argmax(1) != labels)).sum())

    assert unblamed(known.images) > unblamed(naive)
    assert (known.images - images).abs().max() <= eps + 1e-6


def test_on_a_few_slots_it_leaves_the_others_alone(defense, digits):
    images, labels = digits.test.images[:40], digits.test.labels[:40]
    attack = Partial(attack=Unblamed(eps=0.2, steps=5, penalties=(1.0,), draws=1), share=0.25)
    found = attack(defense, images, labels, torch.Generator().manual_seed(0)).images
    assert ((found != images).flatten(1).any(1)).sum() <= 10


def test_without_scores_it_still_attacks(older, digits):
    images, labels = digits.test.images[:20], digits.test.labels[:20]
    found = Unblamed(eps=0.2, steps=5, penalties=(0.1,), draws=1)(older, images, labels, torch.Generator().manual_seed(0))
    assert found.images.shape == images.shape
    assert ATTACKS["unblamed"] is Unblamed
    assert older.suspicion(images).tolist() == pytest.approx([0.0] * 20)

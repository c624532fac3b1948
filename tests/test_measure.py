import pytest
import torch
from scipy.stats import binomtest

from twoprong.attacks import PGD
from twoprong.data.tensors import Labelled
from twoprong.measure import partition, score, wilson


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (3, 10), (10, 10), (37, 400)])
def test_wilson_agrees_with_scipy(hits, count):
    expected = binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert wilson(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_nothing_measured_is_nothing_known():
    assert wilson(0, 0) == (0, 1)


def test_a_partition_uses_every_image_once_in_whole_batches():
    batches = partition(107, 25, torch.Generator().manual_seed(0))
    indices = torch.cat(batches)
    assert [len(batch) for batch in batches] == [25] * 4
    assert len(indices.unique()) == 100


def test_scores_are_those_of_the_decisions(defense, classifier, digits):
    attack = PGD(eps=0.2, step=0.03)
    part = digits.test[:200]
    attacked = Labelled(attack(classifier, part.images, part.labels).images, part.labels)
    scores = score(defense, attacked, 50, 2, torch.Generator().manual_seed(3))

    draw, hits, flags = torch.Generator().manual_seed(3), 0, []
    for _ in range(2):
        order = torch.randperm(200, generator=draw)
        for batch in order.view(4, 50):
            decision = defense(attacked.images[batch], draw)
            hits += int((decision.labels == attacked.labels[batch]).sum())
            flags.append(decision.adversarial)
    assert scores.batches == len(scores.statistics) == 8
    assert scores.defended == hits / 400
    assert scores.flagged == sum(flags) / 8
    assert scores.bare == (classifier(attacked.images).argmax(1) == attacked.labels).double().mean().item()

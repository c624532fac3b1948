import pytest
import torch
from scipy.stats import binomtest, t

from twoprong.attacks import PGD
from twoprong.data.tensors import Labelled
from twoprong.measure import over_batches, partition, score, wilson


@pytest.mark.parametrize(("hits", "count"), [(0, 10), (3, 10), (10, 10), (37, 400)])
def test_wilson_agrees_with_scipy(hits, count):
    expected = binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert wilson(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_nothing_measured_is_nothing_known():
    assert wilson(0, 0) == (0, 1)


@pytest.mark.parametrize("batches", [3, 4, 10, 40])
def test_the_quantile_is_students(batches):
    found = over_batches([50] * batches, [100] * batches)
    assert found == pytest.approx(wilson(50 * batches, 100 * batches, t.ppf(0.975, batches - 1)), abs=0.002)


def test_where_a_batch_stands_or_falls_as_one_it_counts_as_one():
    all_or_nothing = over_batches([100, 0, 0, 100, 0, 100, 0, 0, 0, 0], [100] * 10)
    low, high = wilson(300, 1000)
    assert all_or_nothing[1] - all_or_nothing[0] > 5 * (high - low)
    assert all_or_nothing == pytest.approx(wilson(3, 10, t.ppf(0.975, 9)), abs=0.02)


def test_batches_that_all_fell_say_no_more_than_their_number():
    assert over_batches([0] * 10, [100] * 10) == pytest.approx(wilson(0, 10, t.ppf(0.975, 9)), abs=0.002)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_one_or_two_batches_say_nothing_of_others(batches):
    assert over_batches([30] * batches, [100] * batches) is None


def test_the_interval_over_batches_covers_where_the_one_over_images_does_not():
    """A batch passes with probability 0.3 and then nearly all of it is wrong; 15 batches of 50, 400 times. Truth 0.71."""
    draw, hits, narrow = torch.Generator().manual_seed(0), 0, 0
    for _ in range(400):
        chance = torch.where(torch.rand(15, generator=draw) < 0.3, 0.01, 0.99)
        right = torch.bernoulli(chance[:, None].expand(15, 50), generator=draw).sum(1).tolist()
        truth = 0.3 * 0.01 + 0.7 * 0.99
        low, high = over_batches(right, [50] * 15)
        hits += low <= truth <= high
        low, high = wilson(sum(right), 750)
        narrow += low <= truth <= high
    assert hits / 400 > 0.92  # 95 % asked for; three standard errors are 3 points
    assert narrow / 400 < 0.6


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

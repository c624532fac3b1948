import pytest
import torch

from twoprong.evaluation.scores import divergence, slots, summarise, worst_case
from twoprong.measure import over_batches, wilson
from twoprong.results.evaluation import AttackedBatch, AttackEntry
from twoprong.results.scores import Accuracy, BatchScore
from twoprong.seeds import generator


def entry(correct, draws=2, rejected=None, flagged=None, by_draw=None):
    share = sum(correct) / len(correct) / draws
    return BatchScore(
        correct=correct,
        rejected=rejected,
        by_draw=by_draw or [share] * draws,
        flagged=flagged,
        statistic=None if flagged is None else 0.1,
    )


def test_accuracy_is_over_images_and_draws():
    found = summarise([entry([2, 1, 0, 2], flagged=True, by_draw=[0.75, 0.5]), entry([2, 2], flagged=False)])
    assert found.accuracy == pytest.approx((2.5 + 2) / 6)
    assert found.interval == wilson(4, 6)  # 4.5 rounds to even
    assert found.worst_draw == pytest.approx((0.5 * 4 + 1.0 * 2) / 6)
    assert found.flagged == 0.5
    assert found.flagged_interval == wilson(1, 2)
    assert found.rejected == 0
    assert found.fooled == pytest.approx(1.5 / 6)


def test_who_is_refused_is_neither_right_nor_fooled():
    found = summarise([entry([1, 0, 0, 0], draws=1, rejected=[0, 1, 1, 0])])
    assert found.accuracy == 0.25
    assert found.rejected == 0.5
    assert found.fooled == 0.25
    assert found.accuracy_accepted == 0.5
    assert found.accuracy_accepted_interval == wilson(1, 2)
    assert found.rejected_interval == wilson(2, 4)
    assert found.fooled_interval == wilson(1, 4)
    assert found.flagged is None
    assert found.flagged_interval is None


def test_slots_are_told_from_the_others():
    found = slots([entry([2, 0, 1, 2])], [entry([2, 2, 2, 0])], [[1, 2]])
    assert found.attacked == pytest.approx(0.25)
    assert found.others == 1.0
    assert found.others_clean == 0.5
    assert found.others_interval == wilson(2, 2)


def test_intervals_of_slots_count_every_slot_of_their_kind_once():
    """Two draws and two batches of four: three slots attacked, five not."""
    found = slots([entry([2, 0, 2, 2]), entry([2, 0, 0, 2])], [entry([2] * 4), entry([2, 2, 2, 0])], [[0, 1], [0]])
    assert found.attacked_interval == wilson(2, 3)
    assert found.others_interval == wilson(3, 5)
    assert found.others_clean_interval == wilson(4, 5)


def test_with_all_slots_attacked_there_are_no_others():
    found = slots([entry([0, 0])], [entry([2, 2])], [[0, 1]])
    assert found.others is None
    assert found.others_clean is None


def attack(name, *batches, counts=True):
    """As much of an attack as the worst case reads."""
    held = [AttackedBatch.model_construct(subjects={"d": batch}) for batch in batches]
    return AttackEntry.model_construct(name=name, in_worst_case=counts, batches=held)


def test_the_attacker_picks_one_attack_a_batch():
    found = worst_case(
        [
            attack("a", entry([2, 0, 2, 0]), entry([2, 2, 2, 2])),
            attack("b", entry([0, 2, 2, 2]), entry([0, 0, 0, 2])),
            attack("not counted", entry([0, 0, 0, 0]), entry([0, 0, 0, 0]), counts=False),
        ],
        "d",
    )
    assert found.chosen == ["a", "b"]
    assert found.per_batch == pytest.approx((2 + 1) / 8)
    assert found.per_sample == pytest.approx((1 + 1) / 8)
    assert found.per_sample <= found.per_batch


def test_intervals_of_the_worst_case_count_every_image_once():
    """Neither once per draw, per attack or per batch."""
    first, second = entry([2, 0, 0], rejected=[0, 2, 0]), entry([2, 2], rejected=[0, 0])
    found = worst_case([attack("a", first, second), attack("b", entry([0, 2, 2]), second)], "d")
    assert found.chosen == ["a", "a"]  # ties go to the first
    assert found.per_batch_interval == wilson(4, 5)
    assert found.per_sample_interval == wilson(3, 5)
    assert found.rejected_interval == wilson(1, 5)
    assert found.accuracy_accepted_interval == wilson(3, 4)


def test_intervals_over_batches_are_given_from_three_batches_on():
    two, three = ([entry([2, 0, 2, 0], flagged=False)] * count for count in (2, 3))
    assert (summarise(two).batches, summarise(two).interval_batches) == (2, None)
    assert summarise(two).quoted == summarise(two).interval
    found = summarise([*three, entry([0] * 4, flagged=False)])
    assert found.quoted == found.interval_batches == over_batches([2, 2, 2, 0], [4] * 4)
    first, second = entry([2, 0, 0], rejected=[0, 2, 0]), entry([2, 2, 0], rejected=[0, 0, 0])
    worst = worst_case([attack("a", first, second, second, first), attack("b", *[entry([2, 2, 2])] * 4)], "d")
    assert worst.batches == 4
    assert worst.per_batch_quoted == over_batches([2, 2, 2, 2], [3] * 4)
    assert worst.per_sample_quoted == worst.per_sample_interval_batches


def test_without_an_attack_that_counts_there_is_no_worst_case():
    assert worst_case([], "d") is None
    assert worst_case([attack("a", entry([0, 0]), counts=False)], "d") is None


def test_refusing_counts_as_not_fooled_and_is_reported():
    found = worst_case([attack("a", entry([0, 0], 1, rejected=[1, 1])), attack("b", entry([1, 0], 1, rejected=[0, 0]))], "d")
    assert found.chosen == ["b"]
    assert found.per_batch == 0.5
    assert found.rejected == 0
    assert found.accuracy_accepted == 0.5


def test_where_everything_is_refused_nobody_is_right():
    assert summarise([entry([0, 0], draws=1, rejected=[1, 1])]).accuracy_accepted is None


def test_what_a_classifier_loses_bounds_the_distance_of_two_distributions_from_below():
    """On ten points, where d1 = Σ|p - q| is known: for any set B of errors, and with equality where B is where q > p."""
    draw = generator(0, "discrete")
    for _ in range(50):
        p, q = torch.rand(2, 10, generator=draw).double() ** 3
        p, q = p / p.sum(), q / q.sum()
        d1 = (p - q).abs().sum().item()
        for wrong in (torch.rand(10, generator=draw) < 0.5, q > p):
            clean, attacked = (Accuracy(accuracy=1 - part[wrong].sum().item(), interval=(0.0, 1.0)) for part in (p, q))
            bound = divergence(attacked, clean)
            assert bound.at_least <= d1 + 1e-12
            assert bound.sure == 0  # intervals that say nothing
        assert bound.at_least == pytest.approx(d1)
    known = divergence(
        Accuracy(accuracy=0.03, interval=(0.0, 0.08)), Accuracy(accuracy=0.96, interval=(0.9, 0.98), interval_batches=None)
    )
    assert (known.at_least, known.sure) == (pytest.approx(1.86), pytest.approx(2 * (0.9 - 0.08)))

import pytest
import torch

from twoprong.attacks.pgd import PGD
from twoprong.evaluation.subjects import DRAWS, Rejecting, judge, judge_all, subjects_of
from twoprong.seeds import generator
from twoprong.whitebox import OneRoute


@pytest.fixture(scope="module")
def batches(defense, digits):
    batch = digits.test[:60]
    attacked = PGD(eps=0.2)(defense.classifier, batch.images, batch.labels, generator(0, "x")).images
    assert not defense(batch.images).adversarial
    assert defense(attacked).adversarial
    return batch.images, attacked, batch.labels


def test_the_denoiser_alone_is_the_flagged_route(defense, batches):
    clean, attacked, _ = batches
    for images in (clean, attacked):
        expected = defense.logits(images, "flagged", 1, generator(0, "noise"))[0]
        assert torch.equal(OneRoute(defense, "flagged").decide(images, generator(0, "noise")).logits, expected)


def test_the_rejecting_one_refuses_what_the_defence_flags(defense, batches):
    clean, attacked, labels = batches
    subject = subjects_of(defense)["reject"]
    accepted = judge(subject, clean, labels, generator(0, "x"))
    refused = judge(subject, attacked, labels, generator(0, "x"))
    assert accepted.rejected == [0] * len(labels)
    assert accepted.correct == judge(subjects_of(defense)["bare"], clean, labels, generator(0, "x")).correct
    assert refused.rejected == [1] * len(labels)
    assert refused.correct == [0] * len(labels)
    assert refused.statistic == pytest.approx(defense(attacked).statistic)
    assert isinstance(Rejecting(defense).decide(clean).adversarial, bool)


def test_the_rejecting_one_counts_copies_once(defense, batches):
    clean, _, _ = batches
    found, expected = Rejecting(defense).decide(clean[:30].repeat(2, 1, 1, 1)), defense(clean[:30])
    assert found.threshold == expected.threshold != defense.threshold(60)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.rejected.tolist() == [expected.adversarial] * 60


def test_noise_is_drawn_anew_and_counted(defense, batches):
    _, attacked, labels = batches
    found = judge(subjects_of(defense)["defense"], attacked, labels, generator(0, "x"))
    assert len(found.by_draw) == DRAWS >= 10
    assert sum(found.correct) == pytest.approx(sum(found.by_draw) * len(labels))
    assert len(set(found.correct)) > 1  # some images are right in some draws only
    assert found.flagged is True


def test_one_subject_more_changes_no_others_numbers(defense, batches):
    _, attacked, labels = batches
    subjects = subjects_of(defense)
    some = {name: subjects[name] for name in ("defense", "bare")}
    everybody = judge_all(subjects, attacked, labels, 0, "a", 1)
    assert {name: everybody[name] for name in some} == judge_all(some, attacked, labels, 0, "a", 1)


def test_a_second_defence_and_a_magnet_join(defense):
    assert set(subjects_of(defense, defense, defense)) == {"defense", "bare", "denoiser", "reject", "magnet", "against"}

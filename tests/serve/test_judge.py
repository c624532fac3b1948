import pytest
import torch

import twoprong as tp
from twoprong.attacks import PGD
from twoprong.serve.judge import judge


@pytest.fixture(scope="module")
def lenient(defense):
    config = defense.config.model_copy(update={"on_small_batch": "denoise"})
    return tp.Defense(**{**vars(defense.parts), "config": config})


@pytest.fixture(scope="module")
def attacked(classifier, digits):
    some, seeded = digits.test[100:200], torch.Generator().manual_seed(0)
    return PGD(eps=0.3, step=0.05)(classifier, some.images, some.labels, seeded).images


KEYS = [f"tenant {index % 5}" for index in range(100)]  # twenty images each


def mixed(digits, attacked, who, keys=KEYS):
    """A batch of five keys of which some attack."""
    bad = torch.tensor([key in who for key in keys])
    return torch.where(bad[:, None, None, None], attacked, digits.test.images[100:200]), bad


def test_a_batch_that_passes_has_the_answers_of_the_defence(lenient, digits):
    images = digits.test.images[:100]
    found = judge(lenient, images, KEYS)
    assert torch.equal(found.probabilities, lenient(images).probabilities)
    assert (found.flagged, found.blamed, found.rest) == ((False,) * 100, (), None)


def test_the_key_that_attacks_is_flagged_and_the_others_have_the_answers_of_the_passing_route(lenient, digits, attacked):
    keys = [f"tenant {min(index % 5, 3)}" for index in range(100)]  # two fifths are tenant 3's
    images, bad = mixed(digits, attacked, {"tenant 3"}, keys)
    assert lenient(images).adversarial
    found = judge(lenient, images, keys)
    assert found.blamed == ("tenant 3",)
    assert list(found.flagged) == bad.tolist()
    assert torch.allclose(found.probabilities[~bad], lenient.classifier(images[~bad]).softmax(1), atol=1e-5)
    assert not torch.allclose(found.probabilities[bad], lenient.classifier(images[bad]).softmax(1), atol=1e-2)
    assert not found.rest.adversarial


def test_two_keys_that_attack_are_found_together(lenient, digits, attacked):
    images, bad = mixed(digits, attacked, {"tenant 1", "tenant 4"})
    found = judge(lenient, images, KEYS)
    assert found.blamed == ("tenant 1", "tenant 4")
    assert list(found.flagged) == bad.tolist()


@pytest.mark.parametrize("count", [3, 4, 5])
def test_where_most_attack_nobody_is_cleared(lenient, digits, attacked, count):
    images, _ = mixed(digits, attacked, {f"tenant {index}" for index in range(count)})
    found = judge(lenient, images, KEYS)
    assert all(found.flagged)
    assert found.blamed == ()


def test_one_key_alone_is_flagged_as_a_whole(lenient, attacked):
    found = judge(lenient, attacked, ["only"] * 100)
    assert all(found.flagged)
    assert found.rest is None


def test_copies_of_an_attack_under_another_name_do_not_clear_it(lenient, digits, attacked):
    images = torch.cat([digits.test.images[200:250], attacked[:35], attacked[:35]])
    keys = [f"tenant {index % 5}" for index in range(50)] + ["one"] * 35 + ["other"] * 35
    found = judge(lenient, images, keys)
    assert found.blamed == ("one", "other")
    assert list(found.flagged) == [False] * 50 + [True] * 70


def test_a_batch_too_small_to_test_is_the_policys(older, digits):
    config = older.config.model_copy(update={"on_small_batch": "denoise"})
    lenient = tp.Defense(**{**vars(older.parts), "config": config})
    found = judge(lenient, digits.test.images[:1], ["a"])
    assert found.flagged == (True,)
    assert not found.decision.tested
    copied = judge(lenient, digits.test.images[:1].repeat(50, 1, 1, 1), ["a", "b"] * 25)
    assert not copied.decision.tested


def test_an_answer_that_is_not_finite_is_an_error(lenient, digits):
    class Broken(type(lenient.passing)):
        def classify(self, seen, known=None):
            return super().classify(seen, known) * torch.nan

    broken = tp.Defense(**{**vars(lenient.parts), "passing": Broken(lenient.classifier)})
    with pytest.raises(ArithmeticError, match="not finite"):
        judge(broken, digits.test.images[:100], KEYS)


@pytest.mark.parametrize("who", [(), ("tenant 3",)])
def test_an_image_that_cannot_be_judged_costs_nobody_else_the_passing_route(fragile, digits, attacked, who):
    keys = [f"tenant {min(index % 5, 3)}" for index in range(100)]
    images, bad = mixed(digits, attacked, set(who), keys)
    images[0], bad[0] = 0.5, True
    found = judge(fragile, images, keys)
    assert found.decision.adversarial == bool(who)
    assert found.blamed == who
    assert list(found.flagged) == bad.tolist()
    assert torch.allclose(found.probabilities[~bad], fragile.classifier(images[~bad]).softmax(1), atol=1e-5)


def test_only_suspects_are_said_to_take_the_flagged_route_where_only_they_do(lenient, digits, attacked):
    config = lenient.config.model_copy(update={"rescue": "suspects"})
    saving = tp.Defense(**{**vars(lenient.parts), "config": config})
    images = torch.cat([attacked[:30], digits.test.images[130:200]])
    found = judge(saving, images, ["only"] * 100)
    assert list(found.flagged) == found.decision.suspects.tolist()
    assert 0 < sum(found.flagged) < 100


def test_images_of_a_watched_key_take_the_flagged_route_in_a_batch_that_passes(lenient, digits):
    images = digits.test.images[:100]
    found = judge(lenient, images, KEYS, {"tenant 2", "elsewhere"})
    watched = torch.tensor([key == "tenant 2" for key in KEYS])
    assert not found.decision.adversarial
    assert list(found.flagged) == watched.tolist()
    bare = lenient.classifier(images).softmax(1)
    assert torch.allclose(found.probabilities[~watched], bare[~watched], atol=1e-5)
    assert not torch.allclose(found.probabilities[watched], bare[watched], atol=1e-2)


def test_attacked_images_look_suspicious_by_themselves_and_clean_ones_seldom(lenient, digits, attacked):
    clean = judge(lenient, digits.test.images[:100], KEYS)
    assert not clean.decision.adversarial
    assert sum(clean.suspicious) <= 15
    assert sum(judge(lenient, attacked, KEYS).suspicious) >= 50


def test_without_scores_nobody_looks_suspicious(older, digits):
    assert judge(older, digits.test.images[:100], KEYS).suspicious == (False,) * 100


def test_of_many_keys_with_one_image_each_those_that_attack_are_found(lenient, digits, attacked):
    keys = [f"key {index}" for index in range(100)]
    images = torch.cat([attacked[:30], digits.test.images[130:200]])
    found = judge(lenient, images, keys)
    assert found.decision.adversarial
    assert sum(found.flagged[:30]) >= 15
    assert sum(found.flagged[30:]) <= 20


def test_the_others_in_a_flagged_batch_are_seldom_blamed(lenient, digits, attacked):
    """Thirty batches of ten keys, of which one attacks: each of the nine others could be flagged by chance."""
    keys = ["key 0"] * 30 + [f"key {1 + index % 9}" for index in range(70)]
    draw, divided, wrong, right = torch.Generator().manual_seed(0), 0, 0, 0
    for _ in range(30):
        images = digits.test.images[torch.randperm(400, generator=draw)[:100]].clone()
        images[:30] = attacked[torch.randperm(100, generator=draw)[:30]]
        found = judge(lenient, images, keys)
        if found.rest is not None:
            divided += 1
            right += sum(found.flagged[:30])
            wrong += sum(found.flagged[30:])
    print(f"{divided} batches, flagged: {right / divided:.1f} of 30 attacked images, {wrong / divided:.1f} of 70 others")
    assert divided >= 20
    assert right >= 0.95 * divided * 30
    assert wrong <= 0.02 * divided * 70

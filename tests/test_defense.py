import logging
import math
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from twoprong.attacks import PGD
from twoprong.defense import Defense, load
from twoprong.errors import InputError
from twoprong.models.features import Features
from twoprong.routes import Denoised
from twoprong.whitebox import averaged


@pytest.fixture(scope="module")
def attacked(classifier, digits):
    return pgd(classifier, digits.test[:100], eps=0.2, step=0.03)


def pgd(classifier, some, **settings):
    """Always the same images, whatever tests ran before."""
    return PGD(**settings)(classifier, some.images, some.labels, torch.Generator().manual_seed(0)).images


def with_policy(defense, policy):
    config = defense.config.model_copy(update={"on_small_batch": policy})
    return Defense(**vars(replace(defense.parts, config=config)))


def test_a_clean_batch_gets_the_classifiers_own_logits_and_images(defense, classifier, digits):
    batch = digits.test.images[:100]
    decision = defense(batch)
    assert not decision.adversarial
    assert decision.statistic < decision.threshold
    assert torch.equal(decision.images, batch)
    assert torch.equal(decision.logits, classifier(batch))
    assert torch.equal(decision.labels, classifier(batch).argmax(1))


def test_an_adversarial_batch_goes_through_noise_and_denoiser(older, classifier, attacked):
    decision = older(attacked, torch.Generator().manual_seed(1))
    expected = older.restored(attacked, generator=torch.Generator().manual_seed(1))
    assert decision.adversarial
    assert decision.statistic >= decision.threshold
    assert torch.equal(decision.images, expected)
    assert torch.equal(decision.logits, classifier(expected))
    assert len(decision.logits) == len(attacked)
    assert 0 <= decision.images.min() <= decision.images.max() <= 1


def test_a_clean_batch_costs_one_pass_of_the_classifier_and_an_adversarial_one_two(defense, digits, attacked):
    calls = []
    hook = defense.classifier.head.register_forward_hook(lambda *_: calls.append(1))
    try:
        defense(digits.test.images[:100])
        clean = len(calls)
        defense(attacked)
    finally:
        hook.remove()
    assert (clean, len(calls)) == (1, 3)


def test_noise_is_new_for_every_call_unless_a_generator_is_given(defense, attacked):
    torch.manual_seed(0)
    first = defense(attacked)
    torch.manual_seed(0)
    second = defense(attacked)
    assert not torch.equal(first.images, second.images)
    assert first.statistic == second.statistic


def test_draws_are_as_many_as_asked_for_where_there_is_noise_and_one_where_there_is_none(defense, attacked):
    calm = Denoised(defense.classifier, defense.flagged.denoiser, sigma=0.0)
    quiet = Defense(**vars(replace(defense.parts, flagged=calm)))
    lengths = {one: [len(one.logits(attacked, route, 3)) for route in ("passing", "flagged")] for one in (defense, quiet)}
    assert lengths == {defense: [1, 3], quiet: [1, 1]}


def test_statistic_and_flagged_route_have_gradients_in_the_images(defense, attacked):
    images = attacked.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(defense.statistic(images), images)
    assert gradient.abs().sum() > 0
    route = defense.classified(defense.restored(images, generator=torch.Generator().manual_seed(0))).sum()
    (gradient,) = torch.autograd.grad(route, images)
    assert gradient.abs().sum() > 0


def test_the_deployed_statistic_is_the_one_that_is_differentiated(defense, attacked):
    assert defense.statistic(attacked).item() == pytest.approx(defense(attacked).statistic, abs=1e-6)


def test_it_stays_in_eval_mode_even_when_the_classifier_is_put_into_training(defense, digits):
    assert not any(module.training for module in defense.train().modules())
    before = defense(digits.test.images[:20])
    defense.classifier.train()
    assert torch.equal(defense(digits.test.images[:20]).logits, before.logits)
    assert not defense.classifier.training


@pytest.mark.parametrize(("policy", "adversarial"), [("denoise", True), ("classify", False)])
def test_one_image_follows_the_declared_policy_and_says_so(older, digits, caplog, policy, adversarial):
    with caplog.at_level(logging.WARNING, "twoprong"):
        decision = with_policy(older, policy)(digits.test.images[:1])
    assert (decision.adversarial, decision.tested) == (adversarial, False)
    assert math.isnan(decision.statistic)
    assert math.isnan(decision.threshold)
    assert len(decision.labels) == 1
    assert policy in caplog.text


@pytest.mark.parametrize("policy", ["denoise", "classify"])
def test_an_attacker_of_a_batch_too_small_to_test_sees_the_route_of_the_policy(older, digits, policy):
    patient, image = with_policy(older, policy), digits.test.images[:1]
    seen = patient.logits(image, generator=torch.Generator().manual_seed(1))[0]
    assert torch.equal(seen, patient(image, torch.Generator().manual_seed(1)).logits)


def test_one_image_is_refused_by_default_with_the_way_out(older, digits):
    with pytest.raises(InputError, match=r"batch of 1 image: expected 2 or more.*on_small_batch"):
        older(digits.test.images[:1])


def test_two_images_are_tested(defense, digits):
    assert defense(digits.test.images[:2]).tested


def test_a_batch_beyond_the_calibrated_sizes_is_refused_with_the_range(older, digits):
    with pytest.raises(InputError, match="batch of 130 images: expected 2 to 120"):
        older(digits.test.images[:130])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(4, 3, 8, 8), r"expected \(channels, height, width\) = \(1, 8, 8\).*got \(3, 8, 8\)"),
        (torch.rand(4, 1, 9, 8), r"got \(1, 9, 8\)"),
        (torch.rand(4, 1, 8, 8) * 255, "divide by 255"),
        (torch.rand(0, 1, 8, 8), "empty batches"),
        (torch.full((4, 1, 8, 8), torch.nan), "NaN"),
        (torch.full((4, 1, 8, 8), torch.inf), "infinity"),
    ],
)
def test_bad_batches_get_a_clear_error(defense, images, message):
    with pytest.raises(InputError, match=message):
        defense(images)


@pytest.mark.parametrize(
    "given",
    [
        lambda pixels: pixels,
        lambda pixels: pixels.permute(0, 2, 3, 1).numpy(),
        lambda pixels: (pixels.float() / 255).permute(0, 2, 3, 1),
        lambda pixels: [Image.fromarray(one) for one in pixels[:, 0].numpy()],
        lambda pixels: list(pixels[:, 0].numpy()),
        lambda pixels: pixels.double() / 255,
    ],
    ids=["bytes", "array, channels last", "channels last", "pictures", "list of arrays", "double"],
)
def test_a_batch_is_the_same_however_it_comes(defense, digits, given):
    pixels = (digits.test.images[:50] * 255).round().byte()
    expected, found = defense(pixels.float() / 255), defense(given(pixels))
    assert found.statistic == pytest.approx(expected.statistic, rel=1e-5)
    assert torch.equal(found.labels, expected.labels)
    assert found.images.dtype == torch.float32


def test_everything_wrong_with_a_batch_is_said_at_once(defense):
    with pytest.raises(InputError, match=r"2 problems\n.*got \(1, 9, 8\); .*resize.*\n.*got \[0, 255\]; divide by 255"):
        defense(torch.tensor([0.0, 255.0]).view(2, 1, 1, 1).expand(2, 1, 9, 8))


def test_attacks_take_what_a_defence_takes(defense, digits):
    pixels = (digits.test.images[:20] * 255).round().byte()
    attack = PGD(eps=0.1, step=0.05, steps=1, random_start=False)
    expected = attack(defense, pixels.float() / 255, digits.test.labels[:20])
    assert torch.equal(attack(defense, pixels.permute(0, 2, 3, 1).numpy(), digits.test.labels[:20]).images, expected.images)


def test_the_policy_for_small_batches_may_be_chosen_at_loading(older, digits, tmp_path):
    older.save(tmp_path / "bundle")
    assert load(tmp_path / "bundle").config == older.config
    patient = load(tmp_path / "bundle", on_small_batch="denoise")
    assert patient.config == with_policy(older, "denoise").config
    assert patient(digits.test.images[:1]).adversarial
    with pytest.raises(InputError, match="on_small_batch: expected one of denoise, classify, error, got 'denoised'"):
        load(tmp_path / "bundle", on_small_batch="denoised")


def test_a_classifier_without_a_linear_layer_is_refused():
    convolutional = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    with pytest.raises(InputError, match="expected a classifier with a Linear layer"):
        Features(convolutional)


def test_in_an_autocast_region_networks_are_in_half_precision_and_statistics_are_not(defense, digits):
    """bf16 keeps eight bits of a number: features move by up to a hundredth of their size, and the kernel adds nothing."""
    batch = digits.test.images[:100]
    exact = defense(batch)
    seen = []
    hook = defense.classifier.head.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    try:
        with torch.autocast("cpu", torch.bfloat16):
            coarse = defense(batch)
            gram = defense.detector.kernel(defense.detector.reference, defense.detector.reference)
            through = defense.logits(batch, "flagged", 2)
    finally:
        hook.remove()
    assert set(seen) == {torch.bfloat16}
    assert coarse.logits.dtype == through.dtype == torch.float32
    assert torch.equal(gram, defense.detector.k_reference)
    assert coarse.statistic == pytest.approx(exact.statistic, abs=0.1 * exact.threshold)
    assert (coarse.labels == exact.labels).float().mean() >= 0.98


def test_a_black_image_does_not_carry_a_batch_past_the_test(fragile, attacked):
    images, others = attacked.clone(), torch.arange(100) != 7
    images[7] = 0
    decision, rest = fragile(images), fragile(images[others])
    assert decision.adversarial
    assert (decision.statistic, decision.threshold) == (rest.statistic, fragile.threshold(99))
    assert fragile.suspects(images).all()
    assert (decision.images != images).flatten(1).any(1).all()  # all are denoised


@pytest.mark.parametrize("factor", [1e8, 1e11, 1e12, 1e14, 1e18, 1e25])
def test_images_with_huge_features_do_not_decide_for_the_others(swelling, attacked, digits, factor):
    """In float32 they would cost all others the digits of their distances; beyond, distances to them are no numbers."""
    fragile, white = swelling(factor), torch.ones_like(attacked[:5])
    white[:, 0, 0, 0] -= torch.arange(5) / 10  # five different ones
    decision = fragile(torch.cat([attacked[5:], white]))
    assert fragile.extractor(white)[1].isfinite().all()
    assert decision.adversarial
    assert fragile.suspects(torch.cat([attacked[5:], white])).all()
    clean = digits.test.images[:95]
    if factor == 1e25:  # which takes the flagged route by itself
        decision, rest = fragile(torch.cat([clean, white])), fragile(clean)
        assert (decision.adversarial, decision.statistic) == (False, rest.statistic)
        assert decision.suspects.tolist() == [False] * 95 + [True] * 5


@pytest.mark.parametrize("rescue", ["batch", "suspects", "refuse"])
def test_a_black_image_does_not_decide_for_the_others(fragile, digits, rescue):
    """They are answered as without it, and it takes the flagged route alone."""
    fragile, images = with_rescue(fragile, rescue), digits.test.images[:100].clone()
    alone = [7, 93]
    images[7], images[93] = 0.0, 0.5
    others = torch.tensor([index not in alone for index in range(100)])
    decision, rest = fragile(images, scored=True), fragile(images[others], scored=True)
    assert not decision.adversarial
    assert (decision.statistic, decision.p_value) == (rest.statistic, rest.p_value)
    assert torch.equal(decision.logits[others], rest.logits)
    assert torch.equal(decision.images[others], rest.images)
    assert decision.suspects.nonzero()[:, 0].tolist() == alone
    assert torch.equal(fragile.suspects(images), decision.suspects)
    if rescue == "refuse":
        assert decision.rejected.nonzero()[:, 0].tolist() == alone
        assert decision.labels[alone].tolist() == [-1, -1]
    else:
        assert decision.logits[alone].isfinite().all()
        assert (decision.images[alone] != images[alone]).flatten(1).any(1).all()  # denoised
        seen = fragile.logits(images, draws=1)
        assert torch.equal(seen[0, others].argmax(1), decision.labels[others])


def test_a_batch_of_which_too_few_can_be_judged_is_flagged(fragile, digits):
    images = digits.test.images[:3].clone()
    images[:2] = torch.tensor([0.0, 0.5])[:, None, None, None]
    decision = fragile(images)
    assert decision.adversarial
    assert decision.suspects.all()


def test_copies_in_a_clean_batch_count_once_and_get_one_answer(defense, digits):
    """One image 20 times among 100: flagged no more often than the 81 different images are."""
    images, flags = digits.test.images, []
    for start in range(0, 270, 30):
        batch = images[start : start + 81]
        crowd = torch.cat([batch, batch[3:4].expand(19, -1, -1, -1)])
        once, many = defense(batch), defense(crowd)
        assert (many.statistic, many.threshold, many.p_value) == (once.statistic, once.threshold, once.p_value)
        assert torch.equal(defense.statistic(crowd), defense.statistic(batch))
        assert torch.equal(defense.suspects(crowd), many.suspects)
        assert len(many.logits) == len(many.images) == 100
        assert torch.equal(many.logits[81:], many.logits[3:4].expand(19, -1))
        flags.append(many.adversarial)
    assert sum(flags) <= 2


def test_a_broken_image_among_copies_is_named_by_its_own_number(defense, digits):
    images = digits.test.images[[0, 0, 0, 1]].clone()
    images[3, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="NaN first in image 3 of 4"):
        defense(images)


def test_copies_of_one_image_are_too_few_to_test(older, digits):
    crowd = digits.test.images[:1].expand(100, -1, -1, -1)
    with pytest.raises(InputError, match="batch of 1 image: expected 2 or more"):
        with_policy(older, "error")(crowd)
    decision = with_policy(older, "classify")(crowd)
    assert not decision.tested
    assert len(decision.labels) == 100
    assert not with_policy(older, "classify").suspects(crowd).any()


def test_half_precision_is_refused_before_anything_changes(defense):
    for convert in (defense.half, defense.bfloat16, lambda: defense.to(dtype=torch.bfloat16)):
        with pytest.raises(InputError, match="expected float32 or float64"):
            convert()
    assert {value.dtype for value in defense.parameters()} == {torch.float32}


def with_rescue(defense, rescue):
    return Defense(**vars(replace(defense.parts, config=defense.config.model_copy(update={"rescue": rescue}))))


@pytest.fixture(scope="module")
def mixed(classifier, digits):
    """A batch with 40 attacked images before 60 clean ones: well above the threshold."""
    return torch.cat([pgd(classifier, digits.test[:40], eps=0.3, step=0.05), digits.test.images[100:160]])


def test_only_suspects_take_the_flagged_route(defense, classifier, mixed):
    decision = with_rescue(defense, "suspects")(mixed, torch.Generator().manual_seed(1))
    blamed, bare = decision.suspects, classifier(mixed)
    assert decision.adversarial
    assert blamed[:40].float().mean() > 2 * blamed[40:].float().mean() > 0
    assert blamed[40:].float().mean() < 0.25
    assert torch.equal(decision.images[~blamed], mixed[~blamed])
    assert torch.allclose(decision.logits[~blamed], bare[~blamed], atol=1e-5)
    count = int(blamed.sum())
    draws = 100 // count
    assert draws > 1
    shown = defense.restored(mixed[blamed], draws=draws, generator=torch.Generator().manual_seed(1))
    assert torch.equal(decision.images[blamed], shown[:count])
    expected = classifier(shown).view(draws, count, -1).mean(0)
    assert torch.allclose(decision.logits[blamed], expected, atol=1e-5), "the mean of draws that cost no more than a batch"
    assert decision.scores[blamed].mean() > decision.scores[~blamed].mean()
    assert [one.suspect for one in decision] == blamed.tolist()


def test_the_papers_rescue_sends_the_whole_batch_and_names_the_same_suspects(defense, mixed):
    paper, now = with_rescue(defense, "batch"), defense(mixed)
    decision = paper(mixed, torch.Generator().manual_seed(1))
    assert torch.equal(decision.suspects, now.suspects)
    assert torch.equal(decision.images, paper.restored(mixed, generator=torch.Generator().manual_seed(1)))


def test_a_refused_batch_gets_no_answer_and_a_clean_one_does(defense, digits, mixed, tmp_path):
    defense.save(tmp_path / "bundle")
    strict = load(tmp_path / "bundle", rescue="refuse")
    decision = strict(mixed)
    assert decision.rejected.all()
    assert decision.labels.tolist() == [-1] * 100
    assert decision.logits.isnan().all()
    assert torch.equal(decision.images, mixed)
    clean = strict(digits.test.images[:100])
    assert not clean.rejected.any()
    assert torch.equal(clean.labels, defense(digits.test.images[:100]).labels)
    assert (strict.predict(mixed).labels == -1).all()
    with pytest.raises(InputError, match="rescue: expected one of suspects, batch, refuse"):
        load(tmp_path / "bundle", rescue="all")


def test_a_clean_batch_has_no_suspects(defense, digits):
    decision = defense(digits.test.images[:100])
    assert not decision.suspects.any()
    assert decision.scores is None


@pytest.mark.parametrize("rescue", ["suspects", "batch"])
def test_attackers_see_the_routes_that_images_take(defense, mixed, rescue):
    target = with_rescue(defense, rescue)
    taken = target.suspects(mixed) if rescue == "suspects" else torch.ones(100, dtype=torch.bool)
    decision = target(mixed)
    assert torch.equal(target.suspects(mixed), decision.suspects)
    leaf = mixed.clone().requires_grad_()
    logits = target.logits(leaf, None, 3, torch.Generator().manual_seed(0))
    assert logits.shape == (3, 100, 10)
    assert torch.allclose(logits[:, ~taken], defense.logits(mixed, "passing")[:, ~taken].expand(3, -1, -1), atol=1e-5)
    assert (logits[0, taken] != logits[1, taken]).any(1).all()
    assert torch.autograd.grad(logits.sum(), leaf)[0].isfinite().all()
    assert ((target.suspicion(mixed) < 0) | decision.suspects).all(), "who is above the limit is blamed"


def test_attackers_meet_the_averaged_noise(defense, mixed):
    """The mean of m draws has an m-th of the variance, here over thousands of logits."""
    target = with_rescue(defense, "suspects")
    blamed, draw = target.suspects(mixed), torch.Generator().manual_seed(0)
    one = target.logits(mixed, "flagged", 40, draw)[:, blamed].var(0).mean()
    seen = target.logits(mixed, None, 40, draw)[:, blamed].var(0).mean()
    decided = torch.stack([target(mixed, draw).logits for _ in range(40)])[:, blamed].var(0).mean()
    many = averaged(target.flagged, int(blamed.sum()), 100)
    assert many > 1
    assert seen / one == pytest.approx(1 / many, rel=0.25)
    assert decided / one == pytest.approx(1 / many, rel=0.25)


def test_at_most_eight_draws_are_averaged_and_none_where_nothing_is_random(defense):
    route = defense.flagged
    assert [averaged(route, count, 100) for count in (100, 51, 50, 20, 12, 1)] == [1, 1, 2, 5, 8, 8]
    assert averaged(defense.passing, 1, 100) == 1


def test_one_image_is_judged_alone(defense, digits, attacked):
    clean = [defense(image[None]) for image in digits.test.images[:60]]
    found = [defense(image[None]) for image in attacked[:60]]
    assert all(one.tested for one in clean)
    assert sum(one.adversarial for one in clean) <= 12  # 5 % asked
    assert sum(one.adversarial for one in found) > 3 * sum(one.adversarial for one in clean)
    assert all(one.suspects.item() == one.adversarial for one in (*clean, *found))
    assert defense.statistic(attacked[:1]).item() == pytest.approx(found[0].statistic, abs=1e-4)

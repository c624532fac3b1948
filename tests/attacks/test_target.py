"""What attacks may rely on: a bare classifier as a Target, the counting of queries, and the whole defence as a Target."""

import copy

import pytest
import torch

from twoprong.attacks.pgd import PGD
from twoprong.attacks.target import Counted, Plain, Target, as_target
from twoprong.detect.kernel import Sample
from twoprong.models.modes import modules_of
from twoprong.seeds import generator

N = 40


class Noisy:
    """A target whose logits have noise on them, a fresh one for each draw."""

    coupled = False
    routes = ("passing",)
    colour = "blue"

    def logits(self, images, route=None, draws=1, generator=None):
        clean = images.flatten(1)[:, :3].repeat(draws, 1)
        return (clean + torch.empty_like(clean).normal_(generator=generator)).view(draws, len(images), 3)

    def statistic(self, images, reference=None):
        return images.mean()

    def threshold(self, size):
        return 1 / size

    def decide(self, images, generator=None):
        return Plain(lambda x: self.logits(x, generator=generator)[0]).decide(images)


def test_a_plain_classifier_has_one_route_one_draw_and_no_test(build_model, batch):
    model, (images, _) = build_model(), batch(5)
    target = Plain(model)
    assert isinstance(target, Target)
    assert not target.coupled
    for logits in (target.logits(images), target.logits(images, "flagged", 7), target.logits(images, "passing")):
        assert torch.equal(logits, model(images)[None])
    outcome = target.decide(images)
    assert torch.equal(outcome.logits, model(images))
    assert not outcome.logits.requires_grad
    assert not outcome.adversarial
    assert outcome.statistic < outcome.threshold == target.threshold(5)
    leaf = images.clone().requires_grad_()
    assert target.statistic(leaf).item() == 0
    assert (torch.autograd.grad(target.statistic(leaf), leaf)[0] == 0).all()
    assert torch.autograd.grad(target.logits(leaf).sum(), leaf)[0].abs().sum() > 0


def test_a_target_stays_itself_and_anything_else_becomes_plain(build_model, defense):
    noisy, model = Noisy(), build_model()
    assert as_target(noisy) is noisy
    assert as_target(defense) is defense
    for kind in (model, model.forward, lambda images: images.flatten(1)):
        target = as_target(kind)
        assert isinstance(target, Plain)
        assert target.model is kind


def test_the_modules_behind_a_target_are_found(build_model, defense):
    model = build_model()
    assert modules_of(Plain(model)) == list(model.modules()) == modules_of(model)
    assert modules_of(Plain(model.forward)) == []
    assert modules_of(Noisy()) == []
    assert defense.flagged.denoiser in modules_of(defense)


def test_counted_counts_images_as_often_as_they_are_computed(batch):
    images, _ = batch(5)
    target = Counted(Noisy())
    assert isinstance(target, Target)
    spent = []
    for ask in (
        lambda: target.logits(images),
        lambda: target.logits(images, draws=7),
        lambda: target.statistic(images),
        lambda: target.decide(images),
        lambda: target.threshold(5),
    ):
        before = target.queries
        ask()
        spent.append(target.queries - before)
    assert spent == [5, 35, 5, 5, 0]
    plain = Counted(Plain(lambda x: x.flatten(1)))
    plain.logits(images, draws=7)  # a deterministic route is computed once, however many draws are asked for
    assert plain.queries == 5
    plain.embed(images)
    plain.witness(images[:2], images)
    assert plain.queries == 5 + 5 + 7


def test_counted_passes_on_what_it_is_asked_and_what_it_does_not_know(batch):
    images, _ = batch(5)
    inner, target = Noisy(), Counted(Noisy())
    found = target.logits(images, None, 3, generator(0, "noise"))
    assert torch.equal(found, inner.logits(images, None, 3, generator(0, "noise")))
    assert target.threshold(4) == 0.25
    assert target.colour == "blue"
    with pytest.raises(AttributeError, match="shape"):
        _ = target.shape


def test_an_attack_reports_the_queries_it_made(batch):
    images, labels = batch(5, classes=3)
    result = PGD(eps=0.1, steps=4, draws=3, restarts=2)(Noisy(), images, labels, generator(0, "pgd"))
    assert result.queries == 2 * (4 + 2) * 3 * 5 + 5  # each restart: 4 steps, the kept one, the last; then the outcome


@pytest.fixture(scope="module")
def clean(digits):
    return digits.test.images[:N]


@pytest.fixture(scope="module")
def attacked(classifier, digits):
    """Images that the defence flags, and most of which the classifier gets wrong."""
    return PGD(eps=0.3, step=0.04)(classifier, digits.test.images[:N], digits.test.labels[:N], generator(0, "pgd")).images


@pytest.fixture(scope="module")
def double(defense):
    """The defence in float64, for finite differences."""
    return copy.deepcopy(defense).double()


def test_the_defence_is_a_coupled_target(defense):
    assert isinstance(defense, Target)
    assert defense.coupled


def test_its_clean_route_is_the_classifier(defense, classifier, clean, attacked):
    for images in (clean, attacked):
        assert torch.equal(defense.logits(images, "passing"), classifier(images)[None])
    assert torch.equal(defense.logits(clean, "passing", draws=5), classifier(clean)[None])


def test_its_denoising_route_is_the_decisions_with_the_same_noise(older, attacked):
    decision = older.decide(attacked, generator(1, "noise"))
    assert decision.adversarial
    assert torch.equal(older.logits(attacked, "flagged", generator=generator(1, "noise"))[0], decision.logits)
    assert not torch.equal(older.logits(attacked, "flagged", generator=generator(2, "noise"))[0], decision.logits)


def test_without_a_route_the_batch_takes_that_of_its_verdict(older, classifier, clean, attacked):
    for images, flagged in ((clean, False), (attacked, True)):
        decision = older.decide(images, generator(1, "noise"))
        assert decision.adversarial == flagged
        assert torch.equal(older.logits(images, generator=generator(1, "noise"))[0], decision.logits)
    assert torch.equal(older.logits(clean), classifier(clean)[None])


def test_draws_are_independent_and_of_one_law(defense, clean):
    logits = defense.logits(clean, "flagged", draws=6, generator=generator(0, "noise"))
    assert logits.shape == (6, N, 10)
    assert all(not torch.equal(logits[i], logits[j]) for i in range(6) for j in range(i))
    spread = logits.std(0).mean()
    assert logits.mean((1, 2)).std() < spread  # no draw stands apart
    alone = torch.cat([defense.logits(clean, "flagged", generator=generator(k, "one")) for k in range(6)])
    assert alone.std(0).mean().item() == pytest.approx(spread.item(), rel=0.3)


def slope_and_difference(function, images, seed):
    """The derivative of a scalar function along a random direction: by its gradient, and by central differences."""
    direction = torch.randn(images.shape, generator=generator(seed, "direction"), dtype=images.dtype)
    leaf = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf), leaf)
    step = 1e-7  # so small that hardly a ReLU turns on the way
    with torch.no_grad():
        difference = (function(images + step * direction) - function(images - step * direction)) / (2 * step)
    return (gradient * direction).sum().item(), difference.item()


@pytest.fixture(scope="module")
def smooth(clean):
    """Images in float64 without equal neighbours, at which max pooling would have no derivative."""
    noise = torch.rand(clean.shape, generator=generator(0, "smooth"), dtype=torch.float64)
    return 0.8 * clean.double() + 0.2 * noise


@pytest.mark.parametrize("seed", range(4))
def test_gradients_through_the_denoising_route_are_exact(double, smooth, seed):
    weights = torch.randn(2, 8, 10, generator=generator(seed, "weights"), dtype=torch.float64)

    def route(images):
        return (weights * double.logits(images, "flagged", 2, generator(seed, "noise"))).sum()

    slope, difference = slope_and_difference(route, smooth[:8], seed)
    assert slope != 0
    assert slope == pytest.approx(difference, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("other", [False, True], ids=["reference", "other images"])
def test_gradients_of_the_statistic_are_exact(double, smooth, digits, seed, other):
    against = digits.test.images[N : 2 * N].double() if other else None
    slope, difference = slope_and_difference(lambda images: double.statistic(images, against), smooth, seed)
    assert slope != 0
    assert slope == pytest.approx(difference, rel=1e-4, abs=1e-7)


def test_the_statistic_is_the_decisions(defense, clean, attacked):
    for images in (clean, attacked):
        assert defense.statistic(images).item() == pytest.approx(defense.decide(images).statistic, abs=1e-6)


def test_against_other_images_it_is_the_papers_paired_form(double, digits, attacked):
    """1/n(n-1) Σ_{i≠j} k(x_i,x_j) + k(y_i,y_j) - k(x_i,y_j) - k(y_i,x_j), summed in a loop."""
    x, y = digits.test.images[N : N + 12].double(), attacked[:12].double()
    (first, second) = (Sample(images, double.extractor(images)[1]) for images in (x, y))
    kernel, total = double.detector.kernel, 0.0
    k_xx, k_yy, k_xy = (kernel(*pair).tolist() for pair in ((first, first), (second, second), (first, second)))
    for i in range(12):
        for j in range(12):
            total += (i != j) * (k_xx[i][j] + k_yy[i][j] - k_xy[i][j] - k_xy[j][i])
    assert double.statistic(y, x).item() == pytest.approx(total / (12 * 11), rel=1e-6)


def test_the_threshold_is_the_decisions(defense, digits):
    for size in (10, 33, N):
        assert defense.threshold(size) == defense.decide(digits.test.images[:size]).threshold


def test_the_defence_has_no_gradients_left_on_it_after_an_attack(defense, digits):
    PGD(eps=0.1, steps=2)(defense, digits.test.images[:N], digits.test.labels[:N], generator(0, "pgd"))
    assert all(parameter.grad is None for parameter in defense.parameters())

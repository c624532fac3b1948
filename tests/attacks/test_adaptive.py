"""The attacks made for this defence, on a real (small) one: what each promises beyond the contract."""

import copy
from dataclasses import replace

import pytest
import torch

from twoprong.attacks import ATTACKS, NORMS, Partial
from twoprong.attacks.authors import Authors
from twoprong.attacks.bpda import BPDA
from twoprong.attacks.evade import Evade, _orthogonal
from twoprong.attacks.gauge import Gauge, drawn_back, raised
from twoprong.attacks.greedy import Greedy
from twoprong.attacks.match import Match
from twoprong.attacks.paper import Paper
from twoprong.attacks.partial import Slots
from twoprong.attacks.pgd import PGD
from twoprong.attacks.route import RouteAttack
from twoprong.attacks.target import Plain, PlainOutcome, transparent
from twoprong.defense import Defense
from twoprong.errors import InputError
from twoprong.seeds import generator

EPS = 0.2
FAST = {"steps": 4, "draws": 2, "targets": 2, "square_steps": 10, "searches": 1, "penalties": (1.0,)}


@pytest.fixture(scope="module")
def batch(digits):
    return digits.test.images[:40], digits.test.labels[:40]


def fast(name, norm):
    known = ATTACKS[name].__dataclass_fields__
    settings = {key: value for key, value in FAST.items() if key in known}
    return ATTACKS[name](eps={"linf": EPS, "l2": 1.0}[norm], norm=norm, **settings)


@pytest.mark.parametrize("norm", sorted(NORMS))
@pytest.mark.parametrize("name", sorted(ATTACKS))
@pytest.mark.parametrize("n", [2, 12])
def test_every_attack_keeps_the_contract_on_the_whole_defence(name, norm, n, defense, digits):
    images, labels = digits.test.images[:n], digits.test.labels[:n]
    state = {key: value.clone() for key, value in defense.state_dict().items()}
    attack = fast(name, norm)
    result = attack(defense, images, labels, generator(0, "x"))
    again = attack(defense, images, labels, generator(0, "x"))
    assert torch.equal(result.images, again.images)
    assert result.images.shape == images.shape
    assert attack.ball.size(result.images - images).max() <= attack.eps + 1e-6
    assert 0 <= result.images.min() <= result.images.max() <= 1
    decision = defense(result.images, generator(1, "y"))
    assert (result.flagged, result.statistic) == (decision.adversarial, decision.statistic)
    assert result.queries > 0
    assert all(torch.equal(value, state[key]) for key, value in defense.state_dict().items())
    assert all(parameter.grad is None for parameter in defense.parameters())
    assert not any(module.training for module in defense.modules())


def test_evade_passes_as_clean_and_fools_where_a_plain_attack_is_flagged(defense, classifier, batch):
    plain = PGD(eps=EPS)(classifier, *batch, generator(0, "pgd"))
    assert defense(plain.images).adversarial
    result = Evade(eps=EPS, penalties=(1.0, 10.0))(defense, *batch, generator(0, "evade"))
    assert not result.flagged
    assert result.statistic < defense.threshold(40)
    assert result.accuracy < 0.7


def test_selective_gradients_leave_the_other_function_alone():
    draw = generator(0, "gradients")
    loss, statistic = (torch.randn(3, 1, 4, 4, generator=draw) for _ in range(2))
    up, down = _orthogonal(loss, statistic, True), _orthogonal(loss, statistic, False)
    assert (up * statistic).sum().abs() < 1e-4
    assert (up * loss).sum() > 0
    assert (down * loss).sum().abs() < 1e-4
    assert (down * statistic).sum() < 0


def test_a_batch_is_brought_to_either_side_of_the_threshold(defense, classifier, batch):
    images, labels = batch
    gauge = Gauge.of(defense, images)
    loud = PGD(eps=EPS)(classifier, images, labels, generator(0, "pgd")).images
    assert defense(loud).adversarial
    back = drawn_back(defense, images, loud, gauge)
    assert not defense(back).adversarial
    assert 0 < (back - images).abs().max() < (loud - images).abs().max()
    assert raised(PGD(eps=EPS), defense, images, loud, gauge) is loud
    again = raised(PGD(eps=EPS), defense, images, back, gauge)
    assert defense(again).adversarial
    assert (again - images).abs().max() <= EPS + 1e-6
    assert raised(PGD(eps=EPS), Plain(classifier), images, images, Gauge.of(Plain(classifier), images)) is images


class TwoPixels:
    """Tested by one pixel; flagged batches are read by another one, the rest is read well whatever it holds."""

    coupled = True
    routes = ("passing", "flagged")

    def statistic(self, images, reference=None):
        return images[:, 0, 0, 0].mean() - 0.5

    def threshold(self, size):
        return 0.05

    def logits(self, images, route=None, draws=1, generator=None):
        flagged = route == "flagged" or (route is None and self.statistic(images) >= self.threshold(len(images)))
        other = images[:, 0, 1, 1] - 0.55 if flagged else torch.full((len(images),), -1.0)
        return torch.stack([torch.zeros_like(other), other], 1)[None]

    def decide(self, images, generator=None):
        statistic = self.statistic(images).item()
        return PlainOutcome(self.logits(images)[0], statistic >= self.threshold(len(images)), statistic)


def test_route_makes_sure_that_the_batch_meets_the_denoiser():
    images, labels = torch.full((8, 1, 4, 4), 0.5), torch.zeros(8, dtype=torch.long)
    quiet = PGD(eps=0.1).climb(TwoPixels(), images, labels, generator(0, "route"), "flagged").images
    assert not TwoPixels().decide(quiet).adversarial
    result = RouteAttack(eps=0.1, steps=20)(TwoPixels(), images, labels, generator(0, "route"))
    assert result.flagged
    assert result.accuracy == 0


def test_route_takes_a_batch_that_is_too_small_to_be_tested(defense, digits):
    config = defense.config.model_copy(update={"on_small_batch": "denoise"})
    patient = Defense(**vars(replace(defense.parts, config=config)))
    result = RouteAttack(eps=EPS, steps=2)(patient, digits.test.images[:1], digits.test.labels[:1], generator(0, "one"))
    assert result.flagged


class Narrow(TwoPixels):
    """Tested by how far the pixels are from grey; what passes is read by one of them, what is flagged is read well."""

    def statistic(self, images, reference=None):
        return (images - 0.5).abs().mean()

    def threshold(self, size):
        return 0.03

    def logits(self, images, route=None, draws=1, generator=None):
        passes = route == "passing" or (route is None and self.statistic(images) < self.threshold(len(images)))
        other = images[:, 0, 1, 1] - 0.501 if passes else torch.full((len(images),), -1.0)
        return torch.stack([torch.zeros_like(other), other], 1)[None]

    def embed(self, images):
        return images.flatten(1)

    def reference_images(self):
        bright = torch.full((1, 1, 4, 4), 0.5)
        bright[..., 1, 1] = 0.6
        return bright

    restored = classified = hurdles = witness = suspicion = None


@pytest.mark.parametrize("attack", [Evade(eps=0.1, steps=1), Match(eps=0.1, steps=1)], ids=["evade", "match"])
def test_what_no_iterate_got_past_the_test_is_drawn_back_until_it_passes(attack):
    images, labels = torch.full((8, 1, 4, 4), 0.5), torch.zeros(8, dtype=torch.long)
    result = attack(Narrow(), images, labels, generator(0, "back"))  # one step, from corner to corner: always flagged
    assert not result.flagged
    assert result.accuracy == 0


@pytest.mark.parametrize(("clean", "moved"), [(0.01, True), (0.028, True), (0.04, False)])
def test_drawing_back_ends_on_the_passing_side_or_at_the_clean_batch(clean, moved):
    images = torch.full((4, 1, 4, 4), 0.5 + clean)
    back = drawn_back(Narrow(), images, images + 0.1, Gauge.of(Narrow(), images))
    assert bool((back > images).any()) == moved
    assert (Narrow().statistic(back) < 0.03) == moved


def test_greedy_spends_the_slack_and_no_more(defense, classifier, batch):
    images, labels = batch
    attack = Greedy(eps=EPS, penalties=(0.0, 10.0))
    result = attack(defense, images, labels, generator(0, "greedy"))
    changed = (result.images != images).flatten(1).any(1)
    assert not result.flagged
    assert 0 < changed.sum() < len(images)
    assert (classifier(result.images[changed]).argmax(1) != labels[changed]).all()
    hidden, cost = attack._hide(transparent(defense), images, labels, generator(0, "greedy"))
    order = cost.argsort()[: int(cost.isfinite().sum())]
    assert set(order[: int(changed.sum())].tolist()) == set(changed.nonzero().flatten().tolist())
    one_more = result.images.clone()
    following = order[int(changed.sum())]
    one_more[following] = hidden[following]
    assert defense(one_more).adversarial


class Few(Plain):
    """An image is fooled by a bright first pixel, and a batch is flagged from `allowed` + 1 fooled images on."""

    coupled = True

    def __init__(self, allowed):
        super().__init__(lambda x: torch.stack([torch.full_like(x[:, 0, 0, 0], 0.55), x[:, 0, 0, 0]], 1))
        self.allowed = allowed

    def statistic(self, images, reference=None):
        return (self.model(images).argmax(1) == 1).sum()

    def threshold(self, size):
        return self.allowed + 1

    def witness(self, images, others):
        return images[:, 0, 0, 1] + 0 * images[:, 0, 0, 0]


@pytest.mark.parametrize("allowed", range(9))
def test_greedy_takes_as_many_images_as_the_test_lets_pass(allowed):
    images, labels = torch.full((8, 1, 2, 2), 0.5), torch.zeros(8, dtype=torch.long)
    result = Greedy(eps=0.1, steps=4, penalties=(0.0,))(Few(allowed), images, labels, generator(0, "greedy"))
    assert result.success.sum() == allowed


def test_the_witness_is_the_statistics_derivative_in_one_images_weight(defense, digits):
    """Replacing one of n images by z moves the statistic by 2/n·(witness(z) - witness(old)), up to second order."""
    images, other = digits.test.images[:100], digits.test.images[100:110]
    slope = defense.witness(other, images) - defense.witness(images[:1], images)
    for z, expected in zip(other, slope, strict=True):
        moved = images.clone()
        moved[0] = z
        actual = defense.statistic(moved) - defense.statistic(images)
        assert abs(actual - 2 / 100 * expected) < 4 / 100**2


def test_match_moves_features_to_those_of_the_paired_class(defense, classifier, batch):
    images, labels = batch
    wanted = Match()._models(transparent(defense), images, labels, generator(0, "match"))
    assert torch.equal(classifier.head(wanted).argmax(1), labels ^ 1)
    result = Match(eps=EPS, weights=((0.0, 0.0),))(defense, images, labels, generator(0, "match"))
    before = (defense.embed(images) - wanted).norm(dim=1).mean()
    after = (defense.embed(result.images) - wanted).norm(dim=1).mean()
    assert after < 0.9 * before


def test_an_odd_number_of_classes_is_paired_too():
    """With five classes, class 4 goes to 3."""
    target = Plain(lambda x: x.flatten(1)[:, :5])
    images = torch.zeros(5, 1, 8, 8)
    images[torch.arange(5), 0, 0, torch.arange(5)] = 1
    wanted = Match()._models(target, images, torch.arange(5), None)
    assert wanted.argmax(1).tolist() == [1, 0, 3, 2, 3]


def test_the_papers_attack_asks_to_be_detected(defense, batch):
    result = Paper(eps=EPS, steps=20, draws=2)(defense, *batch, generator(0, "paper"))
    assert result.flagged
    assert result.statistic > 5 * defense.threshold(40)


@pytest.mark.parametrize(("threshold", "route"), [(None, "flagged"), (0.3, "passing"), (0.1, "flagged")])
def test_the_papers_attack_may_take_another_threshold_than_the_deployed_one(threshold, route):
    """The statistic is 0.2, the deployed threshold 0.15."""
    asked = set()

    class Tested(Plain):
        def logits(self, images, route=None, draws=1, generator=None):
            asked.add(route)
            return super().logits(images)

        def statistic(self, images, reference=None):
            return 0.2 + 0 * images.sum()

        def threshold(self, size):
            return 0.15

    target = Tested(lambda x: x.flatten(1)[:, :2])
    images, labels = torch.full((4, 1, 2, 2), 0.5), torch.zeros(4, dtype=torch.long)
    Paper(eps=0.1, steps=2, draws=1, threshold=threshold)(target, images, labels)
    assert asked == {route}


def test_the_authors_attack_starts_at_random_and_looks_through_a_denoiser_in_training_mode(defense, batch):
    images, labels = batch
    stored = {name: value.clone() for name, value in defense.flagged.state_dict().items()}
    first = Authors(eps=EPS, steps=1, draws=1, step=0.0)(defense, images, labels, generator(0, "authors"))
    assert (first.images != images).any()  # no step was made
    learner = defense.in_training()
    noisy = learner.disturb(images, 1, generator(0, "noise"))
    torch.testing.assert_close(learner.restore(noisy[:20]), _by_batch_statistics(defense, noisy[:20]))
    assert not torch.allclose(learner.restore(noisy[:20]), defense.flagged.restore(noisy)[:20], atol=1e-3)
    Authors(eps=EPS, steps=3, draws=2)(defense, images, labels, generator(0, "authors"))
    assert all(torch.equal(value, stored[name]) for name, value in defense.flagged.state_dict().items())
    assert (Authors().threshold, Authors(norm="l2", eps=0.5).step) == (0.05, 2 / 255)


def _by_batch_statistics(defense, noisy):
    """The same denoiser without running statistics: torch's batch norm then takes the batch's own, always."""
    denoiser = copy.deepcopy(defense.flagged.denoiser).eval()
    for module in denoiser.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean = module.running_var = None
    return denoiser(noisy).clamp(0, 1)


def test_partial_touches_its_slots_and_nothing_else(defense, batch):
    images, labels = batch
    attack = Partial(attack=PGD(eps=EPS), share=0.25)
    result = attack(defense, images, labels, generator(3, "partial"))
    slots = attack.slots(images, generator(3, "partial"))
    changed = (result.images != images).flatten(1).any(1)
    assert len(slots) == 10
    assert changed.nonzero().flatten().tolist() == slots.tolist()
    assert (attack.eps, attack.norm) == (EPS, "linf")


def test_one_slot_is_the_least(defense, batch):
    assert len(Partial(share=0.001).slots(batch[0], None)) == 1
    for share in (0, -1, 1.5):
        with pytest.raises(InputError, match="share: expected"):
            Partial(share=share)


def test_slots_show_the_whole_batch_to_the_test_and_score_their_own(defense, batch):
    images, _ = batch
    slots = torch.tensor([3, 7])
    view = Slots(defense, images, slots)
    mine = torch.rand(2, 1, 8, 8, generator=generator(0, "mine"))
    whole = images.clone()
    whole[slots] = mine
    assert torch.equal(view.whole(mine), whole)
    assert view.statistic(mine) == defense.statistic(whole)
    assert view.threshold(2) == defense.threshold(40)
    assert torch.allclose(view.logits(mine, "passing"), defense.logits(whole, "passing")[:, slots], atol=1e-4)
    assert view.logits(mine, "flagged", 3).shape == (3, 2, 10)
    assert len(view.decide(mine).logits) == 2


def test_an_attacker_of_some_slots_hides_among_all_images_of_the_batch():
    """Greedy asks how conspicuous its images are among those it knows; the test will see the whole batch."""
    asked = []

    class Asked(Few):
        def witness(self, images, others):
            asked.append(others)
            return super().witness(images, others)

    images = torch.rand(8, 1, 2, 2, generator=generator(0, "images")) / 2
    attack = Partial(attack=Greedy(eps=0.1, steps=1, penalties=(0.0,)), share=0.25)
    attack(Asked(8), images, torch.zeros(8, dtype=torch.long), generator(0, "partial"))
    assert len(asked) == 3  # the clean batch, the start and the step
    assert all(torch.equal(others, images) for others in asked)


def test_bpda_follows_the_mean_slope_of_all_draws():
    """A cup with its bottom at 0.5: the first of three draws lies to the left, where it falls, the others to the right."""
    asked = []

    class Scattered(Plain):
        def restored(self, images, route="flagged", draws=1, generator=None):
            asked.append(images)
            return torch.cat([images + shift for shift in (-0.2, 0.3, 0.3)])

    target = Scattered(lambda x: torch.stack([0 * x[:, 0, 0, 0], (x[:, 0, 0, 0] - 0.5) ** 2], 1))
    images, labels = torch.full((4, 1, 2, 2), 0.5), torch.zeros(4, dtype=torch.long)
    BPDA(eps=0.1, step=0.05, steps=2, draws=3, random_start=False)(target, images, labels)
    assert len(asked) == 2
    assert (asked[1] - asked[0])[:, 0, 0, 0].tolist() == pytest.approx([0.05] * 4)


@pytest.mark.parametrize(("average", "way"), [("loss", -1), ("logits", 1)])
def test_bpda_averages_losses_or_logits(average, way):
    """Of two draws one is far from the boundary, where its loss hardly rises and its logit steeply; the other's falls."""
    asked = []

    class Scattered(Plain):
        def restored(self, images, route="flagged", draws=1, generator=None):
            asked.append(images)
            return torch.cat([images - 0.3, images + 0.2])

    def model(x):
        u = x[:, 0, 0, 0] - 0.5
        return torch.stack([0 * u, torch.where(u < 0, 40 * u, -10 * u)], 1)

    images, labels = torch.full((4, 1, 2, 2), 0.5), torch.zeros(4, dtype=torch.long)
    settings = {"step": 0.05, "steps": 2, "draws": 2, "random_start": False, "average": average}
    BPDA(eps=0.1, **settings)(Scattered(model), images, labels)
    assert (asked[1] - asked[0])[:, 0, 0, 0].tolist() == pytest.approx([way * 0.05] * 4)


def test_a_target_that_hides_its_inside_is_refused_where_it_is_needed(batch):
    class Closed(Plain):
        purify = embed = witness = reference_images = property()

    for name in ("greedy", "match", "bpda-eot"):
        with pytest.raises(InputError, match="give a Defense or a classifier"):
            fast(name, "linf")(Closed(lambda x: x.flatten(1)[:, :10]), *batch)

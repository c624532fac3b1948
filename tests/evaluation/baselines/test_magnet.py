import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import nn

from twoprong.attacks.evade import Evade
from twoprong.attacks.pgd import PGD
from twoprong.attacks.target import Target, modules_of
from twoprong.errors import InputError
from twoprong.evaluation.baselines.magnet import EvadeEach, MagNet, jensen_shannon, limits, train_magnet
from twoprong.models.train import accuracy
from twoprong.seeds import generator

EPS = 0.18


@pytest.fixture(scope="module")
def magnet(classifier, digits):
    return train_magnet(classifier, digits.train.images, 0.05, 0)


@pytest.fixture(scope="module")
def batch(digits):
    return digits.test.images[:40], digits.test.labels[:40]


def fooled(magnet, images, labels):
    """The share that is accepted and wrong."""
    outcome = magnet.decide(images)
    return (~outcome.rejected & (outcome.logits.argmax(1) != labels)).double().mean().item()


def test_clean_images_are_accepted_and_keep_their_class(magnet, classifier, digits):
    images, labels = digits.test.images, digits.test.labels
    reformed = magnet.reform(images)
    assert reformed.shape == images.shape
    assert 0 <= reformed.min() <= reformed.max() <= 1
    assert (magnet.decide(images).logits.argmax(1) == labels).double().mean() > accuracy(classifier, digits.test) - 0.03
    assert magnet.rejects(images).double().mean() < 0.05 + 3 * (0.05 * 0.95 * (1 / 279 + 1 / 400)) ** 0.5


def test_an_attack_that_does_not_know_it_is_refused_and_one_that_does_is_not(magnet, classifier, batch):
    """The baseline is worth something against those who ignore it, and an attack made for it gets through."""
    images, labels = batch
    bare = PGD(eps=EPS)(classifier, images, labels, generator(0, "bare"))
    assert bare.accuracy < 0.2
    assert fooled(magnet, bare.images, labels) < 0.2
    through = PGD(eps=EPS)(magnet, images, labels, generator(0, "through"))
    aware = EvadeEach(eps=EPS, steps=30, penalties=(10.0,))(magnet, images, labels, generator(0, "aware"))
    assert through.accuracy < 0.2
    assert fooled(magnet, aware.images, labels) > fooled(magnet, through.images, labels) + 0.2
    assert (aware.images - images).abs().max() <= EPS + 1e-6


def test_the_batch_attack_runs_on_it_too(magnet, batch):
    images, labels = batch[0][:12], batch[1][:12]
    through = PGD(eps=EPS)(magnet, images, labels, generator(0, "through"))
    evade = Evade(eps=EPS, steps=15, penalties=(10.0, -1.0))(magnet, images, labels, generator(0, "evade"))
    assert evade.statistic < through.statistic
    assert fooled(magnet, evade.images, labels) >= fooled(magnet, through.images, labels)


def test_what_is_decided_hangs_together(magnet, classifier, batch):
    images, _ = batch
    mixed = torch.cat([images, torch.rand(10, 1, 8, 8, generator=generator(0, "noise"))])
    outcome = magnet.decide(mixed)
    assert isinstance(magnet, Target)
    assert outcome.rejected[40:].all()
    assert outcome.adversarial
    assert torch.equal(outcome.rejected, magnet.rejects(mixed))
    assert torch.equal(outcome.rejected, (magnet.scores(mixed) > magnet.limits).any(1))
    assert outcome.statistic == pytest.approx(magnet.statistic(mixed).item())
    assert outcome.statistic > outcome.threshold
    assert torch.equal(outcome.logits, classifier(magnet.reform(mixed)))
    assert torch.equal(outcome.logits, magnet.logits(mixed, "passing")[0])
    assert not magnet.logits(mixed, "flagged").any()
    accepted = mixed[~outcome.rejected]
    assert magnet.statistic(accepted) == 0
    assert not magnet.decide(accepted).adversarial


def test_gradients_reach_the_images(magnet, batch):
    images = batch[0].clone().requires_grad_()
    for value in (magnet.logits(images).square().sum(), magnet.excess(images).sum()):
        (gradient,) = torch.autograd.grad(value, images)
        assert gradient.isfinite().all()
        assert (gradient.flatten(1).abs().amax(1) > 0).all()


def test_the_state_is_the_autoencoder_and_the_limits_and_nothing_else(magnet, classifier, batch):
    state = magnet.state_dict()
    assert {name.split(".")[0] for name in state} == {"autoencoder", "limits"}
    restored = MagNet(classifier, 1)
    assert not restored.rejects(batch[0]).any()  # nothing is refused before there are limits
    restored.load_state_dict(state)
    first, again = magnet.decide(batch[0]), restored.decide(batch[0])
    assert torch.equal(first.logits, again.logits)
    assert torch.equal(first.rejected, again.rejected)
    assert not any(parameter.requires_grad for parameter in restored.parameters())


def test_training_repeats_itself_and_leaves_the_classifier_alone(digits):
    torch.manual_seed(0)
    classifier = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 10)).train()
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    clean, heard = digits.train.images[:60], []
    one = train_magnet(classifier, clean, 0.1, 3, lambda *report: heard.append(report), steps=4)
    torch.manual_seed(1)
    with torch.no_grad():
        other = train_magnet(classifier, clean, 0.1, 3, steps=4)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    changed = train_magnet(classifier, clean, 0.1, 4, steps=4)
    assert not torch.equal(changed.limits, one.limits)
    assert heard[-1][:3] == ("magnet", 4, 4)
    one.train()
    assert not any(module.training for module in one.autoencoder.modules())
    PGD(steps=1)(one, clean[:4], torch.zeros(4, dtype=torch.long))
    assert all(torch.equal(value, before[name]) for name, value in classifier.state_dict().items())
    assert all(module.training for module in classifier.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in classifier.parameters())
    assert set(classifier.modules()) < set(modules_of(one))


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3, 0.99])
def test_the_limits_spend_the_rate_and_keep_to_it(rate):
    scores = torch.rand(500, 4, generator=generator(0, "scores")) ** torch.tensor([1.0, 2.0, 5.0, 9.0])
    chosen = limits(scores, rate)
    assert (scores > chosen).any(1).double().mean() <= rate
    each = (scores > chosen).sum(0)
    assert len(set(each.tolist())) == 1
    one_more = scores.sort(0, descending=True).values[int(each[0]) + 1]
    assert (scores > one_more).any(1).double().mean() > rate


def test_the_divergence_agrees_with_scipys():
    one, other = torch.randn(2, 5, 7, generator=generator(0, "logits")) * 3
    expected = [jensenshannon(p, q) ** 2 for p, q in zip(one.softmax(1).double(), other.softmax(1).double(), strict=True)]
    assert jensen_shannon(one, other).tolist() == pytest.approx(expected, rel=1e-4)
    assert jensen_shannon(one, one).abs().max() < 1e-12


def test_colour_and_odd_sizes():
    images = torch.rand(20, 3, 9, 11, generator=generator(0, "colour"))
    magnet = train_magnet(nn.Sequential(nn.Flatten(), nn.Linear(297, 4)), images, steps=2)
    assert magnet.reform(images).shape == images.shape
    assert magnet.logits(images).shape == (1, 20, 4)


def test_nonsense_is_refused(classifier, digits):
    for rate in (0, 1, 5):
        with pytest.raises(InputError, match="rate: expected"):
            train_magnet(classifier, digits.train.images, rate)
    with pytest.raises(InputError, match="clean: expected 10 images or more"):
        train_magnet(classifier, digits.train.images[:9])
    with pytest.raises(InputError, match="needs a MagNet"):
        EvadeEach()(classifier, digits.test.images[:2], digits.test.labels[:2])

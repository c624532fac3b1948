"""Against another implementation: on one model, images and budget, our attacks are not weaker than those of torchattacks."""

from statistics import mean

import pytest
import torch
import torchattacks
from torch import nn

from twoprong.attacks.cw import CW
from twoprong.attacks.pgd import BIM, EOTPGD, PGD
from twoprong.attacks.target import Plain
from twoprong.data.digits import load_digits
from twoprong.models.cnn import SmallCNN
from twoprong.seeds import generator, initialised

IMAGES = 300
POINT = 0.01  # by how much a robust accuracy of ours may lie above theirs: random starts differ
STARTS = 8  # one start alone moves it by up to two points
SIGMA, SCORED = 0.1, 20  # noise of the randomised model, and the fresh draws on which its accuracy is measured


@pytest.fixture(scope="module")
def robust():
    """A CNN trained on PGD images, so that attacks neither fail nor win on all of them, and 300 images."""
    data = load_digits()
    with initialised(0, "robust"):
        model = SmallCNN(10, 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    source = generator(0, "order")
    for epoch in range(6):
        for index in torch.randperm(len(data.train), generator=source).split(128):
            part = data.train[index]
            images = PGD(eps=0.15, steps=3)(model, part.images, part.labels, source).images if epoch > 1 else part.images
            optimiser.zero_grad()
            nn.functional.cross_entropy(model.train()(images), part.labels).backward()
            optimiser.step()
    return model.eval().requires_grad_(False), data.everything()[-IMAGES:]


def accuracy(model, images, labels):
    with torch.no_grad():
        return (model(images).argmax(1) == labels).double().mean().item()


def theirs(attack, part, seed=0):
    """torchattacks draws from the global stream: seeded here, and put back."""
    with initialised(seed, "torchattacks"):
        return attack(part.images, part.labels)


BUDGETS = {"linf": (0.16, torchattacks.PGD), "l2": (0.7, torchattacks.PGDL2)}


@pytest.mark.parametrize("norm", sorted(BUDGETS))
def test_bim_is_as_strong_step_by_step(robust, norm):
    """Without a random start the two are one algorithm; ours also keeps the best iterate, theirs the last."""
    (model, part), (eps, kind) = robust, BUDGETS[norm]
    other = theirs(kind(model, eps=eps, alpha=eps / 8, steps=10, random_start=False), part)
    ours = BIM(eps=eps, norm=norm, step=eps / 8, steps=10)(model, part.images, part.labels)
    reached = accuracy(model, other, part.labels)
    assert 0.2 < reached < 0.8  # the comparison says nothing near 0 or 1
    assert ours.accuracy <= reached + 1 / IMAGES  # one image, for rounding
    weak = BIM(eps=eps, norm=norm, step=eps / 100, steps=10)(model, part.images, part.labels)
    assert weak.accuracy > reached + POINT  # and it tells a weak attack from a strong one


@pytest.mark.parametrize("norm", sorted(BUDGETS))
def test_pgd_is_as_strong(robust, norm):
    """At 30 steps, where the random start matters little."""
    (model, part), (eps, kind) = robust, BUDGETS[norm]
    other, ours = kind(model, eps=eps, alpha=eps / 8, steps=30), PGD(eps=eps, norm=norm, step=eps / 8, steps=30)
    reached = mean(accuracy(model, theirs(other, part, seed), part.labels) for seed in range(STARTS))
    found = mean(ours(model, part.images, part.labels, generator(seed, "pgd")).accuracy for seed in range(STARTS))
    assert 0.2 < reached < 0.8
    assert found <= reached + POINT


class NoisyModule(nn.Module):
    """A classifier with noise before it, drawn from the global stream on every call."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model(images + SIGMA * torch.randn_like(images))


class NoisyTarget(Plain):
    """The same as a Target: noise from the generator, all draws in one pass."""

    def logits(self, images, route=None, draws=1, generator=None):
        many = images.repeat(draws, 1, 1, 1)
        noise = torch.empty_like(many).normal_(generator=generator)
        return self.model(many + SIGMA * noise).view(draws, len(images), -1)


def test_pgd_on_the_expectation_over_noise_is_as_strong(robust):
    """At 20 steps: with fewer, the scores by which ours chooses among its iterates are too few draws to be right."""
    (model, part), eps = robust, 0.16
    kwargs = {"eps": eps, "alpha": eps / 4, "steps": 20}
    # In eval mode: torchattacks puts back the mode it finds on the outside, and would leave the inside in training mode.
    other = theirs(torchattacks.EOTPGD(NoisyModule(model).eval(), eot_iter=8, **kwargs), part)
    attack = EOTPGD(eps=eps, step=eps / 4, steps=20, draws=8)
    ours = attack(NoisyTarget(model), part.images, part.labels, generator(0, "eot")).images

    def scored(images):
        with torch.no_grad():
            logits = NoisyTarget(model).logits(images, None, SCORED, generator(0, "score"))
        return (logits.argmax(-1) == part.labels).double().mean().item()

    assert 0.2 < scored(other) < 0.8
    assert scored(ours) <= scored(other) + POINT


def test_cw_finds_images_as_near(robust):
    """Ours finds at least as many; and where both do, its mean l2 distance is not larger by more than 5 %.

    torchattacks cannot move black and white pixels (their tanh variable is infinite): the images are kept off both, so that
    the two solve one problem.
    """
    model, part = robust
    images = 0.05 + 0.9 * part.images
    right = model(images).argmax(1) == part.labels
    with initialised(0, "torchattacks"):
        other = torchattacks.CW(model, c=1, steps=50, lr=0.03)(images, part.labels)
    ours = CW(eps=100.0, norm="l2", c=1.0, steps=50, lr=0.03, searches=2)(model, images, part.labels).images
    both, distance = right.clone(), []
    for found in (other, ours):
        success = right & (model(found).argmax(1) != part.labels)
        distance.append((success.sum().item(), (found - images).flatten(1).norm(dim=1)))
        both &= success
    (count_theirs, far_theirs), (count_ours, far_ours) = distance
    assert count_theirs > 0.9 * right.sum()
    assert count_ours >= count_theirs
    assert far_ours[both].mean() <= 1.05 * far_theirs[both].mean()

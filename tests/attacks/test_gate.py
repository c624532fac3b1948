"""The attack on a gate, where the smallest reachable margin is known, and behind a batch test."""

import pytest
import torch
from torch import nn

from twoprong.attacks import ATTACKS
from twoprong.attacks.target import Plain
from twoprong.routes import Gated
from twoprong.seeds import generator


class Lines(nn.Module):
    """Three classes from sums of four pixels each, beginning at `first`: margins in an l-inf ball are known exactly."""

    def __init__(self, first, scale):
        super().__init__()
        self.first, self.scale = first, scale

    def forward(self, images):
        flat = images.flatten(1)
        return self.scale * torch.stack([flat[:, self.first + 4 * k : self.first + 4 * k + 4].sum(1) for k in range(3)], 1)


class OneGate(Plain):
    """A gate as a target."""

    def __init__(self, gate):
        super().__init__(lambda images: gate.logits(images)[0])
        self.gate = gate

    def hurdles(self, images, labels, route="passing", generator=None):
        return self.gate.hurdles(images, labels)


def images():
    return 0.3 + 0.4 * torch.rand(60, 1, 4, 8, generator=generator(0, "gate"))


def smallest_lead(robust, x, labels, eps):
    """The least that R's probability of the true class can lead the others by: four pixels down, a rival's four up."""
    z = robust(x)
    found = torch.full((len(x),), torch.inf)
    for rival in range(3):
        z_now = z.clone()
        z_now[torch.arange(len(x)), labels] -= robust.scale * 4 * eps
        z_now[:, rival] += robust.scale * 4 * eps
        p = z_now.softmax(1)
        others = p.scatter(1, labels[:, None], -torch.inf).amax(1)
        gap = p.gather(1, labels[:, None])[:, 0] - others
        found = torch.where(labels == rival, found, torch.minimum(found, gap))
    return found


@pytest.mark.parametrize("tau", [0.0, 0.2, 0.5])
def test_it_reaches_the_bound_that_the_margins_give(tau):
    """A reads other pixels than R and always falls, so an image holds exactly where its smallest lead is at least tau."""
    x, eps = images(), 0.06
    robust, accurate = Lines(0, 2.0), Lines(16, 30.0)
    labels = robust(x).argmax(1)
    gate = Gated(accurate, robust, tau)
    result = ATTACKS["gate"](eps=eps, steps=40, targets=2, restarts=2)(OneGate(gate), x, labels, generator(0, "attack"))
    lead = smallest_lead(robust, x, labels, eps)
    doubtful = (lead - max(tau, 1e-9)).abs() < 0.01
    falls = lead < max(tau, 1e-9)
    foolable = torch.ones_like(falls)
    if tau:  # below tau A answers: it falls where its own margin can be overcome
        gap = accurate(x).gather(1, labels[:, None])[:, 0] - accurate(x).scatter(1, labels[:, None], -torch.inf).amax(1)
        foolable = gap < 30 * 8 * eps - 0.5
    certain = ~doubtful & foolable
    assert certain.sum() > 20
    assert torch.equal(result.success[certain], falls[certain])
    assert not result.success[~doubtful & ~falls].any()


def test_where_the_accurate_network_holds_the_robust_one_is_made_wrong_and_sure():
    """A reads pixels that leave no doubt, so an image falls exactly where R can lead by tau with a wrong class."""
    x, eps, tau = images(), 0.06, 0.3
    robust, accurate = Lines(0, 2.0), Lines(16, 30.0)
    labels = robust(x).argmax(1)
    told = x.flatten(1)  # a view
    told[:, 16:28] = 0.1
    for row, label in enumerate(labels):
        told[row, 16 + 4 * label : 20 + 4 * label] = 0.9
    z, most = robust(x), torch.full((len(x),), -torch.inf)
    for rival in range(3):
        sign = -torch.ones(3).index_fill(0, torch.tensor(rival), -1.0)
        p = (z + robust.scale * 4 * eps * sign).softmax(1)
        ahead = p[:, rival] - p.index_fill(1, torch.tensor(rival), 0.0).amax(1)
        most = torch.where(labels == rival, most, torch.maximum(most, ahead))
    attack = ATTACKS["gate"](eps=eps, steps=40, targets=2, restarts=2)
    result = attack(OneGate(Gated(accurate, robust, tau)), x, labels, generator(0, "attack"))
    certain = (most - tau).abs() > 0.01
    assert 5 < (most > tau)[certain].sum() < certain.sum() - 5
    assert torch.equal(result.success[certain], (most > tau)[certain])


def test_plain_gradients_alone_get_less_far():
    """Why the attack knows the hurdles: PGD on the gate's logits stops at the network that answers."""
    x, eps = images(), 0.06
    gate = Gated(Lines(16, 30.0), Lines(0, 2.0), 0.3)
    labels = gate.logits(x)[0].argmax(1)
    left = {
        name: ATTACKS[name](eps=eps, steps=40)(OneGate(gate), x, labels, generator(0, "attack")).accuracy
        for name in ("gate", "pgd")
    }
    assert left["gate"] <= left["pgd"]


def test_behind_a_test_the_batch_stays_whole_and_does_at_least_as_badly_as_clean(defense, digits):
    """In paper mode there is one hurdle on each route, and the statistic has to be kept down."""
    batch = digits.test[:40]
    attack = ATTACKS["gate"](eps=0.1, steps=10, targets=2)
    found = attack(defense, batch.images, batch.labels, generator(0, "attack"))
    again = attack(defense, batch.images, batch.labels, generator(0, "attack"))
    assert torch.equal(found.images, again.images)
    assert found.accuracy < 0.9
    assert (found.images - batch.images).abs().max() <= 0.1 + 1e-6

import pytest
import torch

from twoprong.attacks import Partial
from twoprong.attacks.alarm import CLEAR, Alarm
from twoprong.attacks.gauge import Gauge
from twoprong.attacks.target import Plain
from twoprong.seeds import generator


class Warmth(Plain):
    """Flags a batch by the mean of its pixels; counts how often it is asked."""

    coupled = True
    routes = ("passing", "flagged")

    def __init__(self, limit):
        super().__init__(lambda x: x.flatten(1)[:, :4])
        self.limit, self.asked = limit, 0

    def statistic(self, images, reference=None):
        self.asked += 1
        return images.mean()

    def threshold(self, size):
        return self.limit


@pytest.fixture
def grey():
    return torch.full((6, 1, 8, 8), 0.5), torch.zeros(6, dtype=torch.long)


def test_a_few_slots_flag_a_clean_batch(defense, digits):
    images, labels = digits.test.images[:60], digits.test.labels[:60]
    assert not defense(images).adversarial
    result = Partial(attack=Alarm(eps=0.3), share=0.2)(defense, images, labels, generator(0, "alarm"))
    assert result.flagged
    assert (result.images != images).flatten(1).any(1).sum() <= 12


def test_the_labels_play_no_part(defense, digits):
    images, labels = digits.test.images[:20], digits.test.labels[:20]
    first, other = (Alarm(eps=0.1, steps=3)(defense, images, given, generator(0, "x")) for given in (labels, labels.flip(0)))
    assert torch.equal(first.images, other.images)


def test_the_highest_statistic_is_reached_where_it_can_be(grey):
    found = Alarm(eps=0.1)(Warmth(limit=10.0), *grey, generator(0, "x")).images
    assert torch.allclose(found, torch.full_like(found, 0.6))


def test_the_loudest_iterate_is_kept_not_the_last(grey):
    """Steps of twice the ball against a statistic that peaks at its edge and falls off: most iterates are bad ones."""
    heard = []

    class Fickle(Warmth):
        def statistic(self, images, reference=None):
            value = torch.sin(40 * images.mean())
            heard.append((value.item(), images.detach().clone()))
            return value

    target = Fickle(limit=10.0)
    found = Alarm(eps=0.2, step=0.13, steps=6, restarts=2).perturb(target, *grey, generator(0, "x"))
    tried = heard[1:]  # the first is the clean batch, which the scale is read from
    assert len(tried) == 2 * 7
    assert torch.equal(found, max(tried, key=lambda pair: pair[0])[1])
    assert max(tried, key=lambda pair: pair[0])[0] > tried[-1][0]


def test_it_stops_when_the_batch_is_clearly_flagged_and_not_before(grey):
    target = Warmth(limit=0.36)  # the scale is the clean batch's 0.5: clear is 0.61
    gauge = Gauge.of(target, grey[0])
    target.asked = 0
    found = Alarm(eps=0.2, steps=50).perturb(target, *grey, generator(0, "x"))
    assert target.asked < 50
    assert found.mean() > gauge.threshold + CLEAR * gauge.scale
    quiet = Warmth(limit=0.6)
    Alarm(eps=0.2, steps=50).perturb(quiet, *grey, generator(0, "x"))
    assert quiet.asked == 1 + 51  # above the threshold at the end, but not clearly


def test_without_a_test_it_is_a_random_point_of_the_ball(grey):
    found = Alarm(eps=0.1)(lambda x: x.flatten(1)[:, :4], *grey, generator(0, "x")).images
    assert 0.05 < (found - grey[0]).abs().amax() <= 0.1 + 1e-6

"""A statistic that is not finite is flagged, so no attack may take it for one that passes."""

import pytest
import torch

from twoprong.attacks.evade import Evade
from twoprong.attacks.gauge import Gauge, drawn_back, raised, statistic_gradient, value_of
from twoprong.attacks.greedy import Greedy
from twoprong.attacks.losses import margin
from twoprong.attacks.match import Match
from twoprong.attacks.pgd import PGD
from twoprong.attacks.target import Plain
from twoprong.evaluation.baselines.magnet import MagNet
from twoprong.evaluation.subjects import Subject, judge
from twoprong.seeds import generator


class Undecided(Plain):
    """A tested classifier whose statistic is finite for the clean images only."""

    coupled = True

    def __init__(self, model, clean, value):
        super().__init__(model)
        self.clean, self.value = clean, value

    def statistic(self, images, reference=None):
        same = images.shape == self.clean.shape and torch.equal(images, self.clean)
        return 0 * images.sum() + (0.0 if same else self.value)

    def threshold(self, size):
        return 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
class TestNotFinite:
    def test_it_counts_as_above_every_threshold(self, value):
        assert value_of(torch.tensor(value)) == float("inf")

    def test_a_batch_is_drawn_back_until_it_is_decided(self, value, build_model, batch):
        images, _ = batch(6)
        target = Undecided(build_model(), images, value)
        assert torch.equal(drawn_back(target, images, images + 0.05, Gauge.of(target, images)), images)

    def test_evade_keeps_none_as_passing(self, value, build_model, batch):
        """Every batch but the clean one is undecided, so the clean one comes back."""
        images, labels = batch(6)
        target, attack = Undecided(build_model(), images, value), Evade(eps=0.1, steps=3)
        for penalty in (1.0, None):
            assert torch.equal(attack._try(target, images, labels, margin, penalty, generator(0, "x")), images)

    def test_match_keeps_none_as_passing(self, value, build_model, batch):
        images, labels = batch(6)
        target = Undecided(build_model(), images, value)
        gauge, wanted = Gauge.of(target, images), torch.zeros(6, 4)
        run = Match(eps=0.1, steps=3)._run
        assert not run(target, images, labels, wanted, 1.0, 1.0, gauge, generator(0, "x"))[1]

    def test_greedy_replaces_nothing_that_would_be_undecided(self, value, build_model, batch):
        images, labels = batch(6)
        target = Undecided(build_model(), images, value)
        assert torch.equal(Greedy(eps=0.1, steps=3).perturb(target, images, labels, generator(0, "x")), images)

    def test_an_undecided_batch_need_not_be_raised(self, value, build_model, batch):
        images, _ = batch(6)
        target = Undecided(build_model(), images, value)
        found = images.clone() + 0.01
        assert raised(PGD(eps=0.1), target, images, found, Gauge(1.0, 1.0)) is found
        assert statistic_gradient(target, found)[0] == float("inf")

    def test_an_undecided_clean_batch_gives_a_scale_that_is_finite(self, value, build_model, batch):
        images, _ = batch(6)
        assert Gauge.of(Undecided(build_model(), images + 1, value), images) == Gauge(1.0, 1.0)

    def test_a_score_can_be_written(self, value, build_model, batch):
        images, labels = batch(6)
        target = Undecided(build_model(), images, value)
        outcome = type(target.decide(images))
        target.decide = lambda images, generator=None: outcome(target.model(images), True, value, 1.0)
        found = judge(Subject(target, 1), images, labels, generator(0, "x"))
        assert (found.flagged, found.statistic) == (True, None)


def test_magnet_refuses_what_it_cannot_judge(build_model, batch, monkeypatch):
    images, _ = batch(3)
    magnet = MagNet(build_model(), 1)
    monkeypatch.setattr(magnet, "excess", lambda _: torch.tensor([float("nan"), -1.0, 1.0]))
    assert magnet.decide(images).rejected.tolist() == [True, False, True]

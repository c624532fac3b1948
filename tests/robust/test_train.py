import functools

import pytest
import torch

from twoprong.attacks import PGD
from twoprong.config import AttackConfig, ClassifierConfig
from twoprong.data.digits import load_digits
from twoprong.models.train import accuracy, train_classifier
from twoprong.robust import METHODS, train_robust
from twoprong.robust.train import as_classifier
from twoprong.seeds import generator

EPS = 0.2
ATTACK = AttackConfig(eps=EPS, step=0.1, steps=3)
CONFIG = ClassifierConfig(epochs=5, batch_size=50, augment=False)


@functools.cache
def digits():
    return load_digits()


def left(model):
    """The share of images that PGD, unlike the attacker of the training in steps and step, leaves correct."""
    part = digits().test[:150]
    return PGD(eps=EPS, steps=15)(model, part.images, part.labels, generator(0, "robust")).accuracy


@functools.cache
def natural():
    return left(train_classifier("cnn", 10, digits().train[:800], CONFIG, seed=0))


def trained(method, count=800, config=CONFIG, seed=0, **where):
    settings = as_classifier(method, "cnn", config, ATTACK)
    return train_robust(settings, digits().train[:count], digits().test[:60], 10, seed, **where)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_far_more_robust_than_natural_training(method):
    model = trained(method)
    assert accuracy(model, digits().test) > 0.6  # and did not become robust by knowing nothing: chance is 0.1
    assert left(model) > natural() + 0.2
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(module.training for module in model.modules())


class KilledError(Exception):
    pass


def test_a_killed_training_is_continued_to_the_same_bits(tmp_path):
    config = ClassifierConfig(epochs=3, batch_size=20)
    whole = trained("trades-awp", 60, config).state_dict()

    def kill(stage, done, total, note=""):
        if done == 2:
            raise KilledError

    with pytest.raises(KilledError):
        trained("trades-awp", 60, config, folder=tmp_path, progress=kill)
    resumed = trained("trades-awp", 60, config, folder=tmp_path, resume=True).state_dict()
    finished = trained("trades-awp", 60, config, folder=tmp_path, resume=True).state_dict()
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())
    assert all(torch.equal(finished[name], tensor) for name, tensor in whole.items())


def test_methods_differ_and_so_do_seeds():
    config = ClassifierConfig(epochs=1, batch_size=20, augment=False)
    weights = [trained(method, 40, config).head.weight for method in METHODS]
    weights.append(trained("at", 40, config, seed=1).head.weight)
    for number, one in enumerate(weights):
        assert not any(torch.equal(one, other) for other in weights[:number])
    assert torch.equal(weights[0], trained("at", 40, config).head.weight)


def test_a_method_of_the_paper_as_settings():
    plain, perturbed = (as_classifier(method, "cnn", CONFIG, ATTACK) for method in ("trades", "trades-awp"))
    assert (plain.method, plain.awp, plain.epochs, plain.augment) == ("trades", 0, 5, "none")
    assert perturbed.awp > 0
    assert plain.attacker(0.0).steps == 3  # the attack's own, from the first step on

import functools

import pytest
import torch

from twoprong.attacks import PGD
from twoprong.checkpoint import Checkpoint
from twoprong.config import AttackConfig, ClassifierConfig
from twoprong.data.digits import load_digits
from twoprong.errors import InputError
from twoprong.models.train import accuracy, train_classifier
from twoprong.models.zoo import build
from twoprong.robust import METHODS, train_robust
from twoprong.robust.train import ascend
from twoprong.seeds import generator, initialised

EPS = 0.2
ATTACK = AttackConfig(eps=EPS, step=0.1, steps=3)
CONFIG = ClassifierConfig(epochs=4, batch_size=50, augment=False)


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


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_far_more_robust_than_natural_training(method):
    model = train_robust(method, "cnn", 10, digits().train[:800], CONFIG, ATTACK, seed=0)
    assert accuracy(model, digits().test) > 0.6  # and did not become robust by knowing nothing: chance is 0.1
    assert left(model) > natural() + 0.2
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(module.training for module in model.modules())


class KilledError(Exception):
    pass


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_training_is_continued_to_the_same_bits(method, tmp_path):
    arguments = (method, "cnn", 10, digits().train[:60], ClassifierConfig(epochs=3, batch_size=20), ATTACK, 0)
    whole = train_robust(*arguments).state_dict()

    def kill(stage, done, total, note=""):
        if done == 2:
            raise KilledError

    path = tmp_path / "classifier.safetensors"
    with pytest.raises(KilledError):
        train_robust(*arguments, Checkpoint(path, "key", resume=False), kill)
    resumed = train_robust(*arguments, Checkpoint(path, "key", resume=True)).state_dict()
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())


def test_methods_differ_and_so_do_seeds():
    def trained(method, seed):
        config = ClassifierConfig(epochs=1, batch_size=20, augment=False)
        return train_robust(method, "cnn", 10, digits().train[:40], config, ATTACK, seed).head.weight

    weights = [trained(method, 0) for method in METHODS] + [trained("at", 1)]
    for number, one in enumerate(weights):
        assert not any(torch.equal(one, other) for other in weights[:number])
    assert torch.equal(weights[0], trained("at", 0))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("method", METHODS)
def test_the_inner_attack_stays_in_its_ball_raises_its_loss_and_leaves_the_model_alone(method, norm):
    with initialised(0, "inner"):
        model = build("cnn", 10, 1).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch, attack = digits().train[:20], AttackConfig(norm=norm, eps=0.3, step=0.1, steps=5)
    found = ascend(METHODS[method], model, batch, attack, generator(0, "inner"))
    delta = (found - batch.images).flatten(1)
    size = delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)
    assert size.max() <= 0.3 + 1e-6
    assert found.min() >= 0
    assert found.max() <= 1

    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    with torch.no_grad():
        clean = model(batch.images)
        start, end = (METHODS[method].inner(model(x), clean, batch.labels) for x in (batch.images, found))
    assert (end > start).all()


def test_an_unknown_method_is_told_the_nearest():
    with pytest.raises(InputError, match="trades"):
        train_robust("tradse", "cnn", 10, digits().train[:40], CONFIG, ATTACK, seed=0)

import functools

import pytest
import torch
from torch import nn

from twoprong.config import AttackConfig
from twoprong.data.digits import load_digits
from twoprong.errors import DataError, InputError
from twoprong.models.zoo import build
from twoprong.robust.losses import AWP, HAT
from twoprong.robust.run import BEST, CHECKPOINT, LAST, Mark, halved, load_weights, read_marks, save_weights, train
from twoprong.robust.settings import RobustConfig
from twoprong.robust.trainer import Exam, Trainer
from twoprong.seeds import generator, initialised
from twoprong.storage import load_tensors

SMALL = {"model": "cnn", "epochs": 4, "batch_size": 50, "lr": 0.1, "augment": "none", "early_steps": 2, "ema": 0.9}
ATTACK = {"eps": 0.2, "step": 0.1, "steps": 3}


@functools.cache
def digits():
    return load_digits()


def config(**changes):
    return RobustConfig.model_validate({**SMALL, "attack": ATTACK, **changes})


def helper():
    with initialised(0, "helper"):
        return build("cnn", 10, 1).eval().requires_grad_(False)


def trainer(settings, count=100):
    return Trainer(settings, digits().train[:count], 10, 0, helper() if settings.method == "hat" else None)


def exam(one, count=60):
    return Exam(one.average.model, digits().test[:count], one.config.attack, one.size)


@pytest.mark.parametrize("method", ["natural", "hat"])
def test_training_learns_and_an_adversarial_one_becomes_robust(method, tmp_path):
    one = trainer(config(method=method, epochs=6, gamma=0.1, awp_from=0.5), 600)
    marks = train(one, exam(one, 100), tmp_path, "key", every=6)
    assert marks[-1].clean > 0.6  # chance is 0.1
    assert (marks[-1].robust > 0.3) == (method != "natural")


@pytest.mark.parametrize("method", ["at", "trades", "mart"])
def test_the_other_methods_take_a_step(method):
    one = trainer(config(method=method, epochs=1), 100)
    before = one.model.head.weight.detach().clone()
    assert one.epoch(0) > 0
    assert not torch.equal(one.model.head.weight, before)


def test_a_training_may_begin_with_given_weights():
    given = trainer(config(), 100)
    given.epoch(0)
    other = Trainer(config(), digits().train[:100], 10, 1, helper(), start=given.model)
    for (name, one), same in zip(given.model.state_dict().items(), other.average.model.state_dict().values(), strict=True):
        assert torch.equal(one, same), name


class KilledError(Exception):
    pass


@pytest.mark.parametrize("half", [False, True])
def test_a_killed_training_is_continued(half, tmp_path):
    whole = trainer(config())
    marks = train(whole, exam(whole), tmp_path / "whole", "key", every=2)

    def kill(mark):
        if mark.epoch == 4:
            raise KilledError

    killed, resumed = trainer(config()), trainer(config())
    with pytest.raises(KilledError):
        train(killed, exam(killed), tmp_path / "killed", "key", every=2, report=kill)
    file = tmp_path / "killed" / CHECKPOINT
    if half:
        halved(file, file)
        assert load_tensors(file)[0]["model.model.head.weight"].dtype == torch.float16
    again = train(resumed, exam(resumed), tmp_path / "killed", "key", resume=True, every=2)
    assert [mark.epoch for mark in again] == [mark.epoch for mark in marks] == [2, 4]
    for (name, one), other in zip(whole.state.state_dict().items(), resumed.state.state_dict().values(), strict=True):
        if half:
            assert (one - other).double().norm() <= 0.05 * one.double().norm() + 0.1, name
        else:
            assert torch.equal(one, other), name
    assert again == marks or half


def test_a_folder_holds_the_best_average_the_last_one_and_the_marks(tmp_path):
    one = trainer(config(epochs=3))
    scores = iter([(0.5, 0.3), (0.6, 0.35), (0.7, 0.1)])
    marks = train(one, lambda draw: next(scores), tmp_path, "key", every=1)
    assert read_marks(tmp_path) == marks
    assert load_tensors(tmp_path / BEST)[1]["epoch"] == 2  # the highest sum
    assert load_tensors(tmp_path / LAST)[1]["epoch"] == 3
    last = load_weights(tmp_path / LAST)
    torch.testing.assert_close(last.head.weight, one.average.model.head.weight, rtol=1e-3, atol=1e-4)
    assert not last.training


def test_other_settings_do_not_continue_a_training(tmp_path):
    one, other = trainer(config(epochs=1)), trainer(config(epochs=1))
    train(one, exam(one), tmp_path, "key")
    assert len(train(other, exam(other), tmp_path, "another key", resume=True)) == 1


def test_a_training_that_diverges_says_so(tmp_path):
    one = trainer(config())
    one.epoch = lambda number: float("nan")
    with pytest.raises(FloatingPointError, match="learning rate"):
        train(one, exam(one), tmp_path, "key")
    assert not (tmp_path / BEST).exists()


def test_a_rehearsal_leaves_no_trace():
    one, other = trainer(config(awp_from=0.0)), trainer(config(awp_from=0.0))
    assert one.rehearse(0.1, steps=1) > 0
    assert one.epoch(0) == other.epoch(0)
    for (name, value), same in zip(one.state.state_dict().items(), other.state.state_dict().values(), strict=True):
        assert torch.equal(value, same), name


def test_settings_change_in_the_course_of_a_training():
    settings = config(awp_from=0.25, early_until=0.5, warmup=0.1, lr=0.4)
    assert isinstance(settings.objective(helper(), 0.2), HAT)
    assert isinstance(settings.objective(helper(), 0.25), AWP)
    assert not isinstance(config(awp=0).objective(helper(), 0.9), AWP)
    assert [settings.attacker(done).steps for done in (0.0, 0.49, 0.5)] == [2, 2, 3]
    assert settings.attacker(0.5).step == pytest.approx(2.5 * 0.2 / 3)
    rates = [settings.rate(done) for done in (0.0, 0.05, 0.1, 0.55, 1.0)]
    assert rates == pytest.approx([0.0004, 0.2, 0.4, 0.2, 0.0], abs=1e-6)


def test_helper_examples_need_a_helper():
    with pytest.raises(InputError, match="accurate network"):
        config().objective(None, 0.0)


def test_an_exam_counts_every_image_once():
    class Even(nn.Module):
        """Right on images whose first pixel is above a half, whatever small changes are made."""

        def forward(self, x):
            return torch.stack([x[:, 0, 0, 0], torch.full_like(x[:, 0, 0, 0], 0.5)], 1)

    images = torch.zeros(25, 1, 4, 4)
    images[:10] = 1
    data = digits().test.__class__(images, torch.zeros(25, dtype=torch.long))
    attack = AttackConfig(eps=0.1, step=0.1, steps=1)
    assert Exam(Even(), data, attack, size=10)(generator(0, "exam")) == pytest.approx((0.4, 0.4))
    assert Exam(Even(), data, AttackConfig(eps=0.6, step=0.1), size=10)(generator(0, "exam")) == pytest.approx((0.4, 0))
    assert Exam(Even(), data, None, size=10)(generator(0, "exam")) == pytest.approx((0.4, 0))


def test_weights_of_nothing_we_know_are_refused(tmp_path):
    model = nn.Linear(2, 2)
    model.spec = None
    with pytest.raises(TypeError, match="build"):
        save_weights(tmp_path / "x.safetensors", model, {})
    one = trainer(config())
    save_weights(tmp_path / "y.safetensors", one.model, {})
    assert load_tensors(tmp_path / "y.safetensors")[1]["model"]["name"] == "cnn"
    with pytest.raises(DataError, match="missing"):
        load_weights(tmp_path / "missing.safetensors")


def test_a_marks_score_weighs_both_alike():
    assert Mark(1, 0.0, 0.8, 0.5).score == pytest.approx(1.3)

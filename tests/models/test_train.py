import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from twoprong.checkpoint import Checkpoint
from twoprong.config import ClassifierConfig
from twoprong.data.digits import load_digits
from twoprong.data.tensors import Labelled
from twoprong.models.train import accuracy, augment, by_steps, one_cycle, train_classifier
from twoprong.models.zoo import build
from twoprong.seeds import generator, initialised


@functools.cache
def digits():
    return load_digits()


def some(count):
    return digits().train[:count]


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_few_epochs_are_well_above_chance():
    config = ClassifierConfig(epochs=5, batch_size=50, augment=False)
    model = train_classifier("cnn", 10, some(600), config, seed=0)
    # 400 images at a chance of 1/10 give 0.1 with a standard deviation of 0.015.
    assert accuracy(model, digits().test) > 0.6


def test_the_result_is_in_eval_mode_and_frozen():
    model = train_classifier("cnn", 10, some(40), ClassifierConfig(epochs=1, batch_size=20), seed=0)
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.spec.name == "cnn"


@pytest.mark.parametrize("augmented", [False, True])
def test_the_seed_decides_and_nothing_else(augmented):
    config = ClassifierConfig(epochs=2, batch_size=30, augment=augmented)
    torch.manual_seed(1)
    first = state(train_classifier("cnn", 10, some(90), config, seed=3))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert same(state(train_classifier("cnn", 10, some(90), config, seed=3)), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not same(state(train_classifier("cnn", 10, some(90), config, seed=4)), first)


def test_augmentation_is_used_when_asked_for():
    plain, augmented = (
        train_classifier("cnn", 10, some(40), ClassifierConfig(epochs=1, batch_size=20, augment=choice), seed=0)
        for choice in (False, True)
    )
    assert not same(state(plain), state(augmented))


class KilledError(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_killed_training_is_continued_to_the_same_bits(tmp_path, stop):
    config = ClassifierConfig(epochs=4, batch_size=20)
    whole = train_classifier("cnn", 10, some(60), config, seed=0)

    def kill(stage, done, total, note=""):
        if done == stop:
            raise KilledError

    path = tmp_path / "classifier.safetensors"
    with pytest.raises(KilledError):
        train_classifier("cnn", 10, some(60), config, 0, Checkpoint(path, "key", resume=False), kill)
    heard = []
    resumed = train_classifier(
        "cnn", 10, some(60), config, 0, Checkpoint(path, "key", resume=True), lambda *report: heard.append(report[:3])
    )
    assert heard == [("classifier", epoch, 4) for epoch in range(stop + 1, 5)]
    assert same(state(resumed), state(whole))


def test_steps_are_nesterov_momentum_at_the_one_cycle_rate():
    """Three epochs of one full batch, against the update rule written out."""
    data, config = some(30), ClassifierConfig(epochs=3, batch_size=500, lr=0.05, weight_decay=0.01, augment=False)
    trained = train_classifier("cnn", 10, data, config, seed=0)
    with initialised(0, "classifier"):
        model = build("cnn", 10, 1).train()
    parameters = list(model.parameters())
    momentum = [torch.zeros_like(parameter) for parameter in parameters]
    for share in (0, 1 / 3, 2 / 3):
        gradients = torch.autograd.grad(F.cross_entropy(model(data.images), data.labels), parameters)
        with torch.no_grad():
            for number, (parameter, slope) in enumerate(zip(parameters, gradients, strict=True)):
                decayed = slope + 0.01 * parameter
                momentum[number] = 0.9 * momentum[number] + decayed
                parameter.sub_(0.05 * one_cycle(share) * (decayed + 0.9 * momentum[number]))
    for made, expected in zip(trained.parameters(), parameters, strict=True):
        torch.testing.assert_close(made, expected.detach(), rtol=1e-3, atol=1e-4, check_stride=False)


def test_progress_reports_the_mean_loss_of_every_epoch():
    data, notes = some(30), []
    config = ClassifierConfig(epochs=2, batch_size=500, augment=False)
    train_classifier("cnn", 10, data, config, 0, progress=lambda *report: notes.append(report))
    with initialised(0, "classifier"):
        start = F.cross_entropy(build("cnn", 10, 1).train()(data.images), data.labels).item()
    assert [report[:3] for report in notes] == [("classifier", 1, 2), ("classifier", 2, 2)]
    assert float(notes[0][3].removeprefix("loss ")) == pytest.approx(start, abs=1e-4)


def test_the_rate_rises_for_a_quarter_and_falls_to_zero():
    shares = [step / 1000 for step in range(1001)]
    rates = [one_cycle(share) for share in shares]
    peak = rates.index(max(rates))
    assert shares[peak] == pytest.approx(0.25, abs=0.01)
    assert rates[peak] == pytest.approx(1, abs=0.01)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert 0 < rates[0] <= 0.02
    assert rates[-1] == pytest.approx(0, abs=1e-9)
    assert rates[625] == pytest.approx(0.5)  # half-way down: 3/4 x 1/2 of the training after the peak


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 16), (3, 5)])
def test_every_augmented_image_is_a_shifted_or_mirrored_original(channels, size):
    count, most = 600, max(1, size // 8)
    images = torch.rand(count, channels, size, size, generator=generator(0, "images"))
    made = augment(images, generator(0, "augment"))
    assert made.shape == images.shape

    def moved(down, right, mirrored):
        out = torch.zeros_like(images)
        rows, columns = slice(max(down, 0), size + min(down, 0)), slice(max(right, 0), size + min(right, 0))
        source_rows, source_columns = (
            slice(max(-down, 0), size + min(-down, 0)),
            slice(max(-right, 0), size + min(-right, 0)),
        )
        out[:, :, rows, columns] = images[:, :, source_rows, source_columns]
        return out.flip(3) if mirrored else out

    moves = range(-most, most + 1)
    variants = [(down, right, mirrored) for down in moves for right in moves for mirrored in (False, True)]
    matches = torch.stack([(moved(*variant) == made).flatten(1).all(1) for variant in variants])
    assert (matches.sum(0) == 1).all()  # every image is exactly one of the variants of itself
    used = matches.sum(1)
    assert used.min() > 0  # all of them occur, the unmoved image among them
    mirrored = sum(int(used[number]) for number, variant in enumerate(variants) if variant[2])
    assert abs(mirrored - count / 2) < 5 * (count / 4) ** 0.5  # a fair coin, five standard deviations


def test_augmentation_is_decided_by_its_generator():
    images = torch.rand(20, 3, 8, 8, generator=generator(0, "images"))
    kept = images.clone()
    first = augment(images, generator(1, "augment"))
    assert torch.equal(augment(images, generator(1, "augment")), first)
    assert not torch.equal(augment(images, generator(2, "augment")), first)
    assert torch.equal(images, kept)


@pytest.mark.parametrize("size", [1, 3, 10, 500])
def test_accuracy_is_the_share_of_hits(size):
    logits = torch.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3, 0, 1]]
    data = Labelled(logits.view(10, 4, 1, 1).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 0, 0]))
    assert accuracy(nn.Flatten(), data, size) == 8 / 10


def test_the_authors_rate_falls_to_a_fifth_three_times():
    assert [round(by_steps(epoch / 200), 4) for epoch in (0, 59, 60, 119, 120, 159, 160, 199)] == [
        1, 1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008,
    ]  # fmt: skip


def test_dropout_is_decided_by_the_seed_too():
    data = load_digits().train[:64]
    config = ClassifierConfig(epochs=2, batch_size=32, augment=False, schedule="step")
    one, same, other = (train_classifier("wrn-10-1-authors", 10, data, config, seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert any(not torch.equal(value, other[name]) for name, value in one.items())

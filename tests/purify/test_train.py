import copy
import functools
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from twoprong.checkpoint import Checkpoint
from twoprong.config import DenoiserConfig
from twoprong.data.digits import load_digits
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.models.dunet import DUNet
from twoprong.models.features import Features
from twoprong.models.zoo import build
from twoprong.purify.loss import add_noise, denoiser_loss
from twoprong.purify.train import objective, train_denoiser
from twoprong.seeds import generator, initialised


class Problem(NamedTuple):
    clean: Sample
    adversarial: Tensor
    labels: Tensor
    features: Features
    kernel: DeepKernel

    def train(self, config, seed=0, **more):
        return train_denoiser(*self, config, seed, **more)

    def loss(self, images, alpha=0.01):
        with torch.no_grad():
            return denoiser_loss(images, self.clean, self.labels, self.features, self.kernel, alpha).item()


@functools.cache
def digits():
    return load_digits().train


def problem(count=24):
    """Digits behind a regular pattern, a classifier with batch norm and dropout, and the kernel at its start."""
    images, labels = digits().images[:count], digits().labels[:count]
    with initialised(0, "classifier"):
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(144, 16),
            nn.Linear(16, 10),
        ).eval()
    extract = Features(model)
    with torch.no_grad():
        clean = Sample(images, extract(images)[1])
    pattern = (torch.arange(8)[:, None] + torch.arange(8)) % 2
    adversarial = (images + 0.3 * pattern).clamp(0, 1)
    return Problem(clean, adversarial, labels, extract, DeepKernel.from_median(clean))


def settings(**changes):
    return DenoiserConfig(**{"width": 0.05, "epochs": 3, "batch_size": 8, "milestones": (), "sigma": 0.1, **changes})


def state(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def initial(config, seed=0):
    with initialised(seed, "denoiser"):
        return DUNet(1, config.width)


class KilledError(Exception):
    pass


def test_training_lowers_the_loss():
    given, notes = problem(48), []
    config = settings(epochs=30, batch_size=16, lr=5e-3, milestones=(0.66,))  # a late small rate settles the batch norms
    denoiser = given.train(config, progress=lambda *report: notes.append(report))
    noisy = add_noise(given.adversarial, config, generator(1, "another noise"))
    denoised = denoiser(noisy).clamp(0, 1)
    start, end = given.loss(given.adversarial), given.loss(denoised)
    assert given.loss(denoised, alpha=0.0) < given.loss(noisy, alpha=0.0) / 2  # the discrepancy alone, which can be 0
    assert end < start
    assert [report[:3] for report in notes] == [("denoiser", epoch + 1, 30) for epoch in range(30)]
    losses = [float(report[3].removeprefix("loss ")) for report in notes]
    assert sum(losses[-5:]) < sum(losses[:5])


def test_the_result_is_in_eval_mode_and_frozen_and_as_wide_as_asked():
    denoiser = problem().train(settings(width=0.1, epochs=1))
    assert not any(module.training for module in denoiser.modules())
    assert not any(parameter.requires_grad for parameter in denoiser.parameters())
    expected = DUNet(1, 0.1).state_dict()
    assert {name: tensor.shape for name, tensor in denoiser.state_dict().items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }


def test_the_seed_decides_and_nothing_else():
    torch.manual_seed(1)
    first = state(problem().train(settings(), seed=3))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert same(state(problem().train(settings(), seed=3)), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not same(state(problem().train(settings(), seed=4)), first)


def kill_after(epoch):
    def progress(stage, done, total, note=""):
        if done == epoch:
            raise KilledError

    return progress


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_killed_training_is_continued_to_the_same_bits(tmp_path, stop):
    config = settings(epochs=4, milestones=(0.5,))
    whole = problem().train(config)
    path = tmp_path / "denoiser.safetensors"
    with pytest.raises(KilledError):
        problem().train(config, checkpoint=Checkpoint(path, "key", resume=False), progress=kill_after(stop))
    heard = []
    resumed = problem().train(
        config, checkpoint=Checkpoint(path, "key", resume=True), progress=lambda *report: heard.append(report[1])
    )
    assert heard == list(range(stop + 1, 5))
    assert same(state(resumed), state(whole))


def test_a_kill_in_the_middle_of_an_epoch_goes_back_to_its_start(tmp_path):
    config = settings(epochs=3)
    whole = problem().train(config)
    given, path = problem(), tmp_path / "denoiser.safetensors"
    calls = iter(range(100))

    def die_in_the_second_epoch(*_):
        if next(calls) == 4:  # three batches an epoch
            raise KilledError

    given.features.classifier.register_forward_pre_hook(die_in_the_second_epoch)
    with pytest.raises(KilledError):
        given.train(config, checkpoint=Checkpoint(path, "key", resume=True))
    heard = []
    resumed = problem().train(
        config, checkpoint=Checkpoint(path, "key", resume=True), progress=lambda *report: heard.append(report[1])
    )
    assert heard == [2, 3]
    assert same(state(resumed), state(whole))


def test_another_key_starts_over(tmp_path):
    path = tmp_path / "denoiser.safetensors"
    problem().train(settings(epochs=1), seed=5, checkpoint=Checkpoint(path, "one", resume=False))
    heard = []
    again = problem().train(
        settings(), checkpoint=Checkpoint(path, "other", resume=True), progress=lambda *report: heard.append(report[1])
    )
    assert heard == [1, 2, 3]
    assert same(state(again), state(problem().train(settings())))


def moved(before, after):
    return torch.cat([(after[name] - before[name]).flatten() for name, _ in DUNet(1, 0.05).named_parameters()]).double()


@pytest.mark.parametrize(("milestones", "factor"), [((0.5,), 0.1), ((0.99,), 1.0), ((0.5, 0.99), 0.1)])
def test_the_rate_falls_to_a_tenth_at_a_milestone(milestones, factor):
    """One batch an epoch: both runs share the first update, and the second differs by the rate alone."""
    given = problem(8)
    after_one = state(given.train(settings(epochs=1)))
    plain = moved(after_one, state(given.train(settings(epochs=2))))
    stepped = moved(after_one, state(given.train(settings(epochs=2, milestones=milestones))))
    assert plain.norm() > 0
    assert (stepped - factor * plain).norm() < 1e-3 * plain.norm()


def test_two_milestones_make_a_hundredth():
    given = problem(8)
    after_two = state(given.train(settings(epochs=2, milestones=(0.5,))))
    once = moved(after_two, state(given.train(settings(epochs=3, milestones=(0.33,)))))
    twice = moved(after_two, state(given.train(settings(epochs=3, milestones=(0.33, 0.66)))))
    assert (twice - 0.1 * once).norm() < 1e-3 * once.norm()


def test_the_first_update_is_adams():
    """Adam's first step is the rate times the gradient's sign, wherever the gradient is not tiny, and never more."""
    given, config = problem(8), settings(epochs=1, lr=3e-3)
    first = moved(initial(config).state_dict(), state(given.train(config)))
    assert first.abs().max() < 3e-3 * 1.001
    assert (first.abs() > 3e-3 * 0.99).double().mean() > 0.5


def test_noise_of_the_given_size_is_added_to_the_adversarial_images():
    given, seen = problem(8), []
    listened = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].clone()) if isinstance(module, DUNet) else None
    )
    try:
        given.train(settings(epochs=40, sigma=0.05, width=0.01))
        quiet = len(seen)
        given.train(settings(epochs=1, sigma=0, width=0.01))
    finally:
        listened.remove()
    assert quiet == 40

    def unshuffled(batch):
        order = torch.cdist(given.adversarial.flatten(1), batch.flatten(1)).argmin(1)
        assert sorted(order.tolist()) == list(range(8))
        return batch[order]

    assert torch.equal(unshuffled(seen[-1]), given.adversarial)
    noisy = torch.stack([unshuffled(batch) for batch in seen[:40]])
    inner = (given.adversarial > 0.25) & (given.adversarial < 0.75)  # five standard deviations from the clamp
    noise = (noisy - given.adversarial)[:, inner].double()
    assert abs(noise.std() - 0.05) < 5 * 0.05 / (2 * noise.numel()) ** 0.5
    assert abs(noise.mean()) < 5 * 0.05 / noise.numel() ** 0.5
    assert noisy.min() >= 0
    assert noisy.max() <= 1
    assert not torch.equal(noisy[0], noisy[1])


def test_what_the_classifier_sees_is_in_range():
    given, seen = problem(8), []
    given.features.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    given.train(settings(epochs=5, sigma=1.0, lr=0.1))
    assert len(seen) == 5
    assert min(batch.min() for batch in seen) >= 0
    assert max(batch.max() for batch in seen) <= 1


def test_clean_images_and_labels_are_those_of_the_batch(monkeypatch):
    given, seen = problem(24), []

    def spy(denoised, clean, labels, *rest):
        seen.append((clean, labels))
        return denoiser_loss(denoised, clean, labels, *rest)

    monkeypatch.setattr("twoprong.purify.train.denoiser_loss", spy)
    seen_noisy = []
    monkeypatch.setattr(
        "twoprong.purify.train.add_noise", lambda images, *rest: seen_noisy.append(images) or add_noise(images, *rest)
    )
    given.train(settings(epochs=2))
    orders = []
    for (clean, labels), adversarial in zip(seen, seen_noisy, strict=True):
        index = torch.cdist(clean.pixels.flatten(1), given.clean.pixels.flatten(1)).argmin(1)
        assert torch.equal(clean.features, given.clean.features[index])
        assert torch.equal(labels, given.labels[index])
        assert torch.equal(adversarial, given.adversarial[index])
        orders.append(index)
    first, second = torch.cat(orders[:3]), torch.cat(orders[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(24))  # every image once an epoch
    assert not torch.equal(first, second)  # reshuffled


def test_the_classifier_and_the_kernel_are_left_as_they_were():
    given = problem()
    model = given.features.classifier
    model[1].train()
    model[3].train()  # a mixture of modes, each of which has to come back
    modes = [module.training for module in model.modules()]
    weights, shape, inputs = state(model), state(given.kernel), copy.deepcopy((given.clean, given.adversarial, given.labels))
    first = given.train(settings())
    assert [module.training for module in model.modules()] == modes
    assert same(state(model), weights)
    assert same(state(given.kernel), shape)
    assert [name for name, p in (*model.named_parameters(), *given.kernel.named_parameters()) if p.grad is not None] == []
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(inputs[0].pixels, given.clean.pixels)
    assert torch.equal(inputs[1], given.adversarial)
    assert same(state(first), state(problem().train(settings())))  # in eval mode meanwhile: as if it had come so


def test_modes_come_back_after_a_kill():
    given = problem()
    given.features.classifier.train()
    with pytest.raises(KilledError):
        given.train(settings(), progress=kill_after(1))
    assert all(module.training for module in given.features.classifier.modules())


def test_a_frozen_classifier_works_too():
    given = problem()
    given.features.classifier.requires_grad_(False)
    given.kernel.requires_grad_(False)
    assert same(state(given.train(settings())), state(problem().train(settings())))


@pytest.mark.parametrize(("count", "batch", "steps"), [(5, 500, 1), (24, 24, 1), (24, 10, 2), (9, 8, 1), (2, 2, 1)])
def test_batches_are_whole_and_a_batch_larger_than_the_data_is_all_of_it(count, batch, steps):
    given, seen = problem(count), []
    given.features.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    config = settings(epochs=2, batch_size=batch)
    denoiser = given.train(config)
    assert seen == [min(batch, count)] * steps * 2
    norms = [module for module in denoiser.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {int(norm.num_batches_tracked) for norm in norms} == {steps * 2}  # in train mode, once a step
    assert not same(state(denoiser), state(initial(config)))


@pytest.mark.parametrize("ours", [True, False])
def test_only_what_a_compiler_can_follow_is_compiled(ours):
    """Hooks listen to a classifier that is not ours. On a GPU its compiled loss had no gradients for the denoiser."""
    setting = problem()
    features = Features(build("cnn", 10, 1)) if ours else setting.features
    asked = []

    def compiler(step, **options):
        asked.append(step)
        return step

    objective(DUNet(1, 0.125), features, setting.kernel, DenoiserConfig(), "fp32", compiler)
    assert bool(asked) == ours

import functools

import pytest
import torch
from torch import nn

from twoprong.checkpoint import Checkpoint
from twoprong.errors import DataError
from twoprong.seeds import generator, initialised

EPOCHS = 4
OPTIMISERS = {
    "adam": functools.partial(torch.optim.Adam, lr=1e-2),
    "amsgrad": functools.partial(torch.optim.Adam, lr=1e-2, amsgrad=True),
    "momentum": functools.partial(torch.optim.SGD, lr=5e-2, momentum=0.9),
    "nesterov": functools.partial(torch.optim.SGD, lr=5e-2, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "plain": functools.partial(torch.optim.SGD, lr=5e-2),
}


def fresh(optimiser, seed=0):
    """A convolutional network with batch norm in channels_last, its optimiser and its stream."""
    with initialised(seed, "network"):
        model = nn.Sequential(
            nn.Conv2d(3, 5, 3, padding=1),
            nn.BatchNorm2d(5),
            nn.ReLU(),
            nn.Conv2d(5, 4, 3, stride=2),
            nn.Flatten(),
            nn.Linear(4 * 3 * 3, 3),
        ).to(memory_format=torch.channels_last)
    return model, OPTIMISERS[optimiser](model.parameters()), generator(seed, "order")


def train(checkpoint, optimiser="adam", until=EPOCHS, seed=0):
    """The loop every stage has: load, then epochs with a random order and random noise. Returns where it began, too."""
    model, steps, draw = fresh(optimiser, seed)
    images = torch.rand(16, 3, 8, 8, generator=generator(0, "images"))
    labels = torch.arange(16) % 3
    done = checkpoint.load(model, steps, draw)
    for epoch in range(done, until):
        for batch in torch.randperm(16, generator=draw).split(4):
            noisy = images[batch] + 0.1 * torch.randn(images[batch].shape, generator=draw)
            steps.zero_grad()
            nn.functional.cross_entropy(model(noisy), labels[batch]).backward()
            steps.step()
        checkpoint.save(epoch + 1, model, steps, draw)
    return done, model


def same(one, other):
    states = one.state_dict(), other.state_dict()
    return list(states[0]) == list(states[1]) and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("stop", range(1, EPOCHS))
def test_stopping_and_going_on_gives_the_same_bits(tmp_path, optimiser, stop):
    _, whole = train(Checkpoint(None, "key", resume=False), optimiser)
    path = tmp_path / "stage.safetensors"
    train(Checkpoint(path, "key", resume=False), optimiser, until=stop)
    done, resumed = train(Checkpoint(path, "key", resume=True), optimiser, seed=1)  # everything must come from the file
    assert done == stop
    assert same(resumed, whole)


def test_stopping_after_every_epoch_gives_the_same_bits(tmp_path):
    _, whole = train(Checkpoint(None, "key", resume=False))
    checkpoint = Checkpoint(tmp_path / "stage.safetensors", "key", resume=True)
    begun = [train(checkpoint, until=until)[0] for until in range(1, EPOCHS)]
    done, resumed = train(checkpoint)
    assert [*begun, done] == list(range(EPOCHS))
    assert same(resumed, whole)


def test_the_layout_of_the_model_survives_a_resume(tmp_path):
    checkpoint = Checkpoint(tmp_path / "stage.safetensors", "key", resume=True)
    train(checkpoint, until=1)
    _, model = train(checkpoint, until=2)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not model[0].weight.is_contiguous()


def test_a_finished_stage_is_loaded_without_another_step(tmp_path):
    checkpoint = Checkpoint(tmp_path / "stage.safetensors", "key", resume=True)
    _, whole = train(checkpoint)
    done, again = train(checkpoint, seed=1)
    assert done == EPOCHS
    assert same(again, whole)


def refused(path, key, resume):
    """Whether a load reports nothing to resume and touches nothing."""
    model, optimiser, draw = fresh("adam", seed=7)
    untouched, _, untouched_draw = fresh("adam", seed=7)
    done = Checkpoint(path, key, resume).load(model, optimiser, draw)
    unmoved = torch.equal(draw.get_state(), untouched_draw.get_state()) and not optimiser.state_dict()["state"]
    return done == 0 and same(model, untouched) and unmoved


def test_only_a_file_with_this_key_is_resumed_and_only_on_request(tmp_path):
    path = tmp_path / "stage.safetensors"
    train(Checkpoint(path, "key", resume=False), until=2)
    assert refused(path, "another key", resume=True)
    assert refused(path, "key", resume=False)
    assert refused(tmp_path / "absent.safetensors", "key", resume=True)
    assert not refused(path, "key", resume=True)


def test_without_a_path_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(Checkpoint(None, "key", resume=True), until=1)
    assert list(tmp_path.iterdir()) == []
    assert refused(None, "key", resume=True)


def test_the_folder_is_made_and_holds_one_file(tmp_path):
    path = tmp_path / "work" / "deep" / "stage.safetensors"
    train(Checkpoint(path, "key", resume=False), until=2)
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_checkpoint_is_named_instead_of_silently_dropped(tmp_path):
    path = tmp_path / "stage.safetensors"
    train(Checkpoint(path, "key", resume=False), until=1)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"stage\.safetensors"):
        train(Checkpoint(path, "key", resume=True))

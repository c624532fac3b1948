import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import twoprong as tp
from twoprong.cli.arguments.fit import FitArguments
from twoprong.cli.classifier import Normalisation, get_trained
from twoprong.cli.finished import is_finished
from twoprong.data.tensors import Labelled
from twoprong.storage import save_tensors


@pytest.fixture(scope="module")
def given(defense, digits, tmp_path_factory) -> FitArguments:
    path = tmp_path_factory.mktemp("finished") / "bundle"
    about = defense.about | {"classes": list(digits.classes)}
    tp.Defense(**vars(replace(defense.parts, about=about))).save(path)
    return FitArguments(data="digits", bundle=path, classifier="cnn", resume=True)


def test_the_same_fit_is_finished(given, digits, small_config):
    assert is_finished(given, small_config, digits, None, "fp32")


@pytest.mark.parametrize(
    "change",
    [{"resume": False}, {"overwrite": True}, {"classifier": "resnet18"}, {"classifier": "torchvision.models:resnet18"}],
    ids=str,
)
def test_another_command_is_not(given, digits, small_config, change):
    assert not is_finished(replace(given, **change), small_config, digits, None, "fp32")


def test_other_settings_images_or_classes_are_not(given, digits, small_config, tmp_path):
    assert not is_finished(given, small_config.model_copy(update={"seed": 1}), digits, None, "fp32")
    assert not is_finished(given, small_config, replace(digits, classes=("a", *digits.classes[1:])), None, "fp32")
    images = digits.train.images.clone()
    images[0, 0, 0, 0] = 1 - images[0, 0, 0, 0]
    assert not is_finished(given, small_config, replace(digits, train=Labelled(images, digits.train.labels)), None, "fp32")
    assert not is_finished(given, small_config, digits, None, "bf16")
    assert not is_finished(given, small_config, digits, digits.test, "fp32")
    assert not is_finished(replace(given, bundle=tmp_path / "nowhere"), small_config, digits, None, "fp32")


def test_weights_that_are_given_are_compared(given, digits, small_config, classifier, tmp_path):
    file, state = tmp_path / "weights.safetensors", dict(classifier.state_dict())
    save_tensors(file, state)
    assert is_finished(replace(given, weights=file), small_config, digits, None, "fp32")
    name = next(iter(state))
    save_tensors(file, state | {name: state[name] + torch.ones(())})
    assert not is_finished(replace(given, weights=file), small_config, digits, None, "fp32")
    file.write_bytes(b"")
    assert not is_finished(replace(given, weights=file), small_config, digits, None, "fp32")


FACTORY = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""


@pytest.mark.parametrize(
    "own",
    [{"weights": "net.pt"}, {"weights_inside": True}, {"weights": "net.pt", "mean": "0.5", "std": "0.25"}],
    ids=["a .pt", "weights inside", "an adapter"],
)
@pytest.mark.usefixtures("rough")
def test_a_fit_around_a_classifier_from_elsewhere_is_finished_too(few, digits, tiny_config, tmp_path, monkeypatch, own):
    """The same command is; one with other weights or another normalisation is not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_for_resume", raising=False)
    Path("own_for_resume.py").write_text(FACTORY, encoding="utf-8")
    images, net = replace(digits, train=few), nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    torch.save(net.state_dict(), "net.pt")
    own |= {"weights": Path(own["weights"])} if "weights" in own else {}
    name = "own_for_resume:make"
    given = FitArguments(data="digits", bundle=Path("bundle"), classifier=name, resume=True, held_out="none", **own)
    normalisation = Normalisation(given.mean, given.std)
    model = get_trained(name, given.weights, images, given.weights_inside, normalisation)
    about = {"config": tiny_config, "classes": digits.classes, "held_out": "none", "measure": False, "force": True}
    tp.fit(model, few, **about).save("bundle")
    assert is_finished(given, tiny_config, images, None, "fp32")
    assert not is_finished(replace(given, mean="0.1", std="0.2"), tiny_config, images, None, "fp32")
    torch.save({name: value + 1 for name, value in net.state_dict().items()}, "other.pt")
    assert not is_finished(replace(given, weights=Path("other.pt")), tiny_config, images, None, "fp32")

from dataclasses import replace

import pytest
import torch

import twoprong as tp
from twoprong.cli.arguments.fit import FitArguments
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

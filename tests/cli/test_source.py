from pathlib import Path

import pytest

from twoprong.cli.classifier import Training, get_classifier
from twoprong.cli.source import get_data, say_fewer
from twoprong.config import FitConfig
from twoprong.errors import BundleError, InputError
from twoprong.progress import silent


def test_a_packaged_bundle_brings_its_own_images():
    assert get_data(None, Path("cifar10-small"), None, None).name == "cifar10-small"


def test_what_is_asked_for_goes_first():
    assert get_data("digits", Path("cifar10-small"), None, None).name == "digits"


def test_any_other_bundle_asks_for_images(tmp_path):
    for bundle in (tmp_path, None):
        with pytest.raises(InputError, match=r"--data: expected digits, cifar10, .*got none; .*\(cifar10-small, "):
            get_data(None, bundle, None, None)


def test_a_bundle_that_is_not_there_is_said_before_its_images_are():
    with pytest.raises(BundleError, match="no such bundle"):
        get_data(None, Path("nowhere"), None, None)


def test_nothing_is_learned_from_test_images(tmp_path):
    data = get_data("cifar10-small", None, None, None)
    for weights in (None, tmp_path / "weights.safetensors"):
        with pytest.raises(InputError, match=r"--data cifar10-small: expected images to learn from, .*500 test images only"):
            get_classifier("cnn", weights, data, Training(FitConfig(), tmp_path, False, silent, "fp32"))


def test_who_asks_for_more_images_than_there_are_is_told(capsys):
    data = get_data("cifar10-small", None, None, None)
    for wanted in (None, 500):
        say_fewer(wanted, data)
        assert capsys.readouterr().err == ""
    say_fewer(501, data)
    assert "--images 501: cifar10-small has 500 test images" in capsys.readouterr().err

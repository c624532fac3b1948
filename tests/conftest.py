"""A defence small enough to fit in seconds, shared by the tests that need one."""

import pytest
from torch import nn

from twoprong.config import FitConfig, parse_config
from twoprong.data.digits import load_digits
from twoprong.data.tensors import ImageData
from twoprong.defense import Defense
from twoprong.recipe import fit, train_named

SMALL = {
    "attack": {"eps": 0.2, "step": 0.05},
    "kernel": {"epochs": 20},
    "detector": {"max_batch_size": 120, "permutations": 50},
    "denoiser": {"width": 0.1, "epochs": 4, "batch_size": 100, "sigma": 0.1},
    "classifier": {"epochs": 8, "batch_size": 64, "augment": False},
}


@pytest.fixture(scope="session")
def small_config() -> FitConfig:
    return parse_config(SMALL)


@pytest.fixture(scope="session")
def digits() -> ImageData:
    return load_digits()


@pytest.fixture(scope="session")
def classifier(digits: ImageData, small_config: FitConfig) -> nn.Module:
    return train_named("cnn", digits.train, 10, small_config)


@pytest.fixture(scope="session")
def defense(classifier: nn.Module, digits: ImageData, small_config: FitConfig) -> Defense:
    return fit(classifier, digits.train, config=small_config)

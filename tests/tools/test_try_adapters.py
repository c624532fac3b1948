"""The adapters with the real torchvision, timm and transformers, from a fit to the loaded bundle."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from try_adapters import KINDS, attempt, make_importable, pictures


@pytest.fixture(scope="module", autouse=True)
def importable():
    make_importable()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return pictures(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_of_the_package_is_protected_and_its_bundle_says_the_same(kind, data, tmp_path):
    attempt(kind, tmp_path, data)

import sys
from pathlib import Path

import pytest

import twoprong as tp
from twoprong.errors import BundleError
from twoprong.models.zoo import MODELS, build
from twoprong.rebuild import _kinds, _twin

sys.path.insert(0, str(Path(__file__).parent))
from forgeries import Forged


@pytest.fixture(scope="module")
def original(defense, tmp_path_factory) -> Forged:
    path = tmp_path_factory.mktemp("original") / "bundle"
    defense.save(path)
    return Forged.of(path)


@pytest.mark.parametrize("change", [{"threshold": 0.5}, {"central": 0.5}, {"batch_size": 3}])
def test_thresholds_in_the_manifest_are_those_in_force(original, change, tmp_path):
    forged = original.copied()
    forged.manifest["thresholds"][0] |= change
    with pytest.raises(BundleError, match=r"manifest\.json: other thresholds than those in force.*detector\.safetensors"):
        tp.load(forged.write(tmp_path / "forged"))


@pytest.mark.parametrize("name", [*MODELS, "wrn-16-2"])
def test_a_twin_has_every_tensor_of_a_network_and_no_memory(name):
    state = build(name, 7, 3).state_dict()
    twin = _twin(Path("file"), {"kind": "classifier", "spec": {"name": name, "classes": 7, "channels": 3}}, state)
    assert _kinds(twin.state_dict()) == _kinds(state)
    assert {tensor.device.type for tensor in twin.state_dict().values()} == {"meta"}

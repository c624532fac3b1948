import runpy
import sys
from pathlib import Path

import pytest

import twoprong as tp
from twoprong.config import SplitConfig
from twoprong.errors import InputError

TOOLS = Path(__file__).parents[2] / "tools"
ARGUMENTS = {
    "train_robust.py": ["--out", "out"],
    "gate_curve.py": ["--accurate", "a", "--robust", "r", "--out", "out"],
    "fit_hardened.py": ["--accurate", "a", "--robust", "r", "--out", "out"],
    "score_robust.py": ["--weights", "r", "--out", "out"],
}


@pytest.mark.parametrize("tool", ARGUMENTS)
def test_missing_data_end_the_command_with_an_error(tool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [tool, "--data", str(tmp_path), *ARGUMENTS[tool]])
    with pytest.raises(SystemExit, match="no CIFAR-10 here"):
        runpy.run_path(str(TOOLS / tool), run_name="__main__")
    assert not (tmp_path / "out").exists()


def test_a_bundle_brings_its_split_and_none_that_holds_out_what_the_robust_network_has_learned(monkeypatch):
    tool = runpy.run_path(str(TOOLS / "fit_hardened.py"))
    with pytest.raises(InputError, match="--accurate cifar10-small: R has learned images that this bundle holds out"):
        tool["network_and_splits"]("cifar10-small")
    bundle, fewer = tp.load("cifar10-small"), SplitConfig(reference=400)
    bundle.config = bundle.config.model_copy(update={"splits": fewer})
    monkeypatch.setattr(tp, "load", lambda name: bundle)
    assert tool["network_and_splits"]("another")[1] == fewer


def test_a_training_begins_with_the_robust_network_of_a_hardened_bundle_and_refuses_another():
    robust_of = runpy.run_path(str(TOOLS / "train_robust.py"))["robust_of"]
    assert robust_of("cifar10-small-hardened").spec.name == "resnet18-silu"
    with pytest.raises(InputError, match="--start cifar10-small: expected weights or a hardened bundle"):
        robust_of("cifar10-small")

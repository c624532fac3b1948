import runpy
import sys
from pathlib import Path

import pytest

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

import subprocess
from pathlib import Path

import torch

from twoprong.evaluation import provenance


def test_it_says_with_what_a_result_was_made():
    found = provenance.made_with(torch.device("cpu"))
    assert set(found.as_dict()) == {"twoprong", "torch", "python", "commit", "platform", "device", "threads"}
    assert found.torch == torch.__version__
    assert "CPU" in found.device
    assert not any(
        "/" in str(value) for key, value in found.as_dict().items() if key != "device"
    )  # no paths of this machine


def test_the_commit_is_the_source_trees(monkeypatch):
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(provenance.__file__).parent, capture_output=True, text=True, check=False
    )
    commit = provenance.made_with(torch.device("cpu")).commit
    if head.returncode == 0 and commit is not None:
        assert head.stdout.startswith(commit.removesuffix("-dirty"))
    monkeypatch.setenv("PATH", "")  # no git, no commit, no error
    monkeypatch.delenv("TWOPRONG_COMMIT", raising=False)
    assert provenance.made_with(torch.device("cpu")).commit is None
    monkeypatch.setenv("TWOPRONG_COMMIT", "0123456789ab")  # who copied the tree may say what it is a copy of
    assert provenance.made_with(torch.device("cpu")).commit == "0123456789ab"


def test_what_was_resumed_from_another_commit_is_said_once():
    now = provenance.origin()
    other = now.model_copy(update={"commit": "0123456789ab-dirty"})
    found = provenance.made_with(torch.device("cpu"), [now, other, other])
    assert found.resumed_from == [other]
    assert found.as_dict()["resumed_from"] == [other.as_dict()]
    assert found.mixed == "0123456789ab-dirty"
    assert "resumed_from" not in provenance.made_with(torch.device("cpu"), [now]).as_dict()
    assert provenance.made_with(torch.device("cpu")).mixed == ""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import blame


def test_parts_of_algorithm_3_are_what_one_process_makes_and_are_made_once(defense, digits, tmp_path, monkeypatch):
    some = digits.test[:200]
    whole = blame.algorithm_3(defense, some, 1, tmp_path / "whole")
    assert whole.shape == some.images.shape
    assert not torch.equal(whole, some.images)
    for number in (1, 2):
        part = blame.algorithm_3(defense, some, 1, tmp_path / "parts", (number, 2))
        assert torch.equal(part, whole.split(blame.SIZE)[number - 1])
    monkeypatch.setattr(
        blame, "kept", lambda file, make: blame.load_tensors(file.with_name(f"{file.name}.safetensors"))[0]["images"]
    )
    assert torch.equal(blame.algorithm_3(defense, some, 1, tmp_path / "parts"), whole)

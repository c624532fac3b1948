import re
import tomllib
from pathlib import Path

import pytest

from twoprong.attacks import ATTACKS
from twoprong.config import FitConfig, load_config
from twoprong.presets import PRESETS

ROOT = Path(__file__).parents[1]


def test_the_python_in_the_readme_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    parts = {"denoiser": 2, "kernel": 20, "classifier": 10}  # the demo's test trains longer
    short = {name: getattr(PRESETS["digits"], name).model_copy(update={"epochs": count}) for name, count in parts.items()}
    monkeypatch.setitem(PRESETS, "digits", PRESETS["digits"].model_copy(update=short))
    namespace: dict = {}
    exec(compile(code, "README.md", "exec"), namespace)
    clean, attacked = capsys.readouterr().out.splitlines()
    assert clean.startswith("False")
    assert attacked.startswith("True")
    assert namespace["defense"](namespace["attacked"]).adversarial


def test_the_readme_is_one_page():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize(("file", "expected"), [("cifar10.toml", FitConfig()), ("digits.toml", PRESETS["digits"])])
def test_the_settings_files_are_the_defaults(file, expected):
    assert load_config(ROOT / "configs" / file) == expected


def test_the_full_settings_file_lists_every_setting():
    listed = tomllib.loads(re.sub(r"(?m)^# (\w+ = )", r"\1", (ROOT / "configs/cifar10.toml").read_text()))
    for section, values in FitConfig().model_dump().items():
        assert section in listed
        if isinstance(values, dict):
            assert set(listed[section]) == set(values)


def test_the_papers_settings_load():
    assert load_config(ROOT / "configs" / "paper.toml").detector.threshold == 0.5


def test_every_attack_has_its_row_in_the_docs():
    table = (ROOT / "docs/attacks.md").read_text().split("\n## The list\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    assert {name for cell in listed for name in re.findall(r"`([\w-]+)`", cell)} == set(ATTACKS)

"""The table of planted mistakes fits the code and the tests as they are; `python tools/mutants.py` plants them."""

import ast
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import mutants  # noqa: E402

ALL = mutants.read()


@pytest.fixture
def package(tmp_path):
    """A copy of the sources, without the weights."""
    return Path(shutil.copytree(ROOT / "src" / "twoprong", tmp_path / "twoprong", ignore=lambda *_: ["bundles"]))


def test_every_mistake_can_be_planted_and_is_still_python(package):
    for mutant in ALL:
        path = package / mutant.file
        before = path.read_text(encoding="utf-8")
        mutant.plant(package)
        after = path.read_text(encoding="utf-8")
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before)), mutant.name
        path.write_text(before, encoding="utf-8")


def test_every_test_named_is_there():
    for test in {test for mutant in ALL for test in mutant.tests}:
        path, name = test.split("::")
        there = {node.name for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body if hasattr(node, "name")}
        assert name in there, test


def test_every_mistake_has_a_name_of_its_own_and_a_test():
    assert len({mutant.name for mutant in ALL}) == len(ALL)
    assert all(mutant.tests for mutant in ALL)


@pytest.mark.parametrize("old", ["not in the file", "import"])
def test_a_text_that_does_not_stand_exactly_once_is_refused(package, old):
    with pytest.raises(ValueError, match="expected once"):
        replace(ALL[0], old=old).plant(package)


@pytest.mark.parametrize(("codes", "noticed"), [([0, 1], True), ([0, 0], False), ([0, 4], False), ([1, 1], False)])
def test_a_mistake_is_caught_when_its_tests_fail_with_it_and_only_with_it(monkeypatch, codes, noticed):
    """Exit code 4: the test does not run at all."""
    mutant = replace(ALL[0], tests=["one"])
    monkeypatch.setattr(mutants, "read", lambda: [mutant])
    monkeypatch.setattr(mutants, "run", lambda tests, planted=None: codes[planted is not None])
    assert mutants.main([]) == (0 if noticed else 1)

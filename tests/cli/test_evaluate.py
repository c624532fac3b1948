"""What the command hands to the evaluation; tests/evaluation say what becomes of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from twoprong.cli import evaluate as command
from twoprong.cli.arguments.evaluate import EvaluateArguments
from twoprong.cli.arguments.shared import Device
from twoprong.errors import InputError


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Calls the command; gives what it asked the evaluation for."""
    found = {}

    def listen(defense, images, options, **places):
        found.update(vars(options), **places, defense=defense, images=images)
        return SimpleNamespace(results=SimpleNamespace(as_dict=dict), reliable=True)

    monkeypatch.setattr(command, "run_evaluation", listen)

    def call(bundle, **options):
        plain = {"device": Device.cpu, "as_json": True, "directory": tmp_path / "out"}
        command.evaluate(EvaluateArguments(bundle=Path(bundle), **plain, **options))
        return found

    return call


def test_a_packaged_bundle_is_evaluated_on_its_own_images_and_without_training_images(asked):
    found = asked("cifar10-small")
    assert found["source"] == "cifar10-small"
    assert len(found["images"]) == 500
    assert found["train"] is None


def test_training_images_are_handed_on_where_there_are_some(asked, defense, digits, tmp_path):
    defense.save(tmp_path / "bundle")
    found = asked(tmp_path / "bundle", data="digits", against=tmp_path / "bundle")
    assert len(found["train"]) == len(digits.train)
    assert found["against"].about == defense.about


def test_a_packaged_bundle_may_be_compared_with(asked):
    assert (
        asked("cifar10-small", against=Path("cifar10-small"))["against"].config == asked("cifar10-small")["defense"].config
    )


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2"])
def test_a_part_that_does_not_exist_is_refused(asked, part):
    with pytest.raises(InputError, match=f"--part {part}: expected K/N"):
        asked("cifar10-small", part=part)


def test_a_part_is_handed_on_and_nothing_else_is_run(asked, monkeypatch):
    heard = []
    monkeypatch.setattr(command, "evaluate_part", lambda *given, options: heard.append(given[3:]) or 1)
    assert asked("cifar10-small", part="2/5") == {}
    ((_, _, part),) = heard
    assert part == (2, 5)

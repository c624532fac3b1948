"""What holds for every command: help at once, one object handed on, one line and a code when it ends early."""

import inspect
import subprocess
import sys
from importlib import import_module, metadata

import pytest
from typer.testing import CliRunner

from twoprong.cli import COMMANDS, app

WATCHED = """
import atexit, sys
from twoprong.cli import main
heavy = ("torch", "numpy", "matplotlib", "jinja2", "PIL")
atexit.register(lambda: print(*[name for name in heavy if name in sys.modules], file=sys.stderr))
main()
"""


def watched(*arguments):
    """The command in a process of its own, which ends by saying what heavy modules it has loaded."""
    return subprocess.run([sys.executable, "-c", WATCHED, *arguments], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_answers_without_loading_torch(name):
    run = watched(*name.split(), "--help")
    assert "Usage" in run.stdout
    assert run.stderr.split() == []


def test_the_version_answers_without_loading_torch():
    run = watched("--version")
    assert run.stdout.strip() == f"twoprong {metadata.version('twoprong')}"
    assert run.stderr.split() == []


def test_a_command_that_works_loads_it():
    assert "torch" in watched("inspect", "cifar10-small").stderr.split()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_function_of_a_command_takes_its_arguments_as_one_object(name):
    (only,) = inspect.signature(getattr(import_module(f"twoprong.cli.{name}"), name)).parameters.values()
    assert only.annotation is COMMANDS[name]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("evaluate", "my bundle", "--images", "5"), "continue with: twoprong evaluate 'my bundle' --images 5 --resume"),
        (("evaluate", "b", "--resume"), "continue with: twoprong evaluate b --resume"),
        (("inspect", "cifar10-small"), "interrupted; nothing was kept"),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(monkeypatch, arguments, said):
    def interrupt(given):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module(f"twoprong.cli.{arguments[0]}"), arguments[0], interrupt)
    monkeypatch.setattr(sys, "argv", ["anything", *arguments])
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == 130
    assert said in found.stderr
    assert found.stderr.count("--resume") == said.count("--resume")

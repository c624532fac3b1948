"""Ctrl-C while the command is still loading: in a process of its own, with a library that interrupts its own import."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import twoprong
from twoprong.interrupts import begin, loading

INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('went on')"


def interrupted_by(library, folder, **options):
    (folder / f"{library}.py").write_text(INTERRUPT, encoding="utf-8")
    paths = os.pathsep.join([str(folder), str(Path(twoprong.__file__).parents[1])])
    command = [sys.executable, "-m", "twoprong", "inspect", "cifar10-small"]
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize("library", ["torch", "typer"])
def test_an_interrupt_while_loading_is_one_line_and_130(tmp_path, library):
    ended = interrupted_by(library, tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted; nothing had begun\n")


def test_who_ignores_interrupts_goes_on_ignoring_them(tmp_path):
    ended = interrupted_by("torch", tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert "went on" in ended.stdout


def test_after_loading_an_interrupt_is_an_exception_again():
    before = signal.getsignal(signal.SIGINT)
    with suppress(ImportError), loading():
        assert signal.getsignal(signal.SIGINT) is not before
        raise ImportError
    assert signal.getsignal(signal.SIGINT) is before
    with loading():
        begin()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is before

"""A fit that is killed, truly (SIGKILL), goes on with --resume to the very tensors of an undisturbed run."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SETTINGS = (
    "attack.eps=0.2", "attack.step=0.1", "attack.steps=2", "attack.batch_size=100", "kernel.epochs=20",
    "detector.permutations=50", "detector.max_batch_size=20",
    "denoiser.width=0.1", "denoiser.epochs=5", "denoiser.batch_size=100", "denoiser.sigma=0.1", "classifier.epochs=5",
)  # fmt: skip
TENSORS = ("classifier.safetensors", "detector.safetensors", "denoiser.safetensors")


def start(folder: Path, *more: str) -> subprocess.Popen:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    command = [sys.executable, "-m", "twoprong", "fit", "--data", "digits", "--classifier", "cnn", "--out", "bundle"]
    log = (folder / "log").open("a")
    return subprocess.Popen([*command, *settings, *more], cwd=folder, stderr=log, stdout=log)


def finish(folder: Path, *more: str) -> dict[str, dict[str, torch.Tensor]]:
    process = start(folder, *more)
    assert process.wait(300) == 0, (folder / "log").read_text()
    return {name: load_file(folder / "bundle" / name) for name in TENSORS}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return finish(tmp_path_factory.mktemp("undisturbed"))


def appeared(pattern: str):
    return lambda folder: any(folder.glob(pattern))


def logged(text: str):
    return lambda folder: text in (folder / "log").read_text()


POINTS = {  # in the order in which a fit comes to them
    "while the classifier trains": appeared("bundle.work/checkpoints/classifier.safetensors"),
    "while examples are crafted": appeared("bundle.work/crafted-*/00001.safetensors"),
    "while the kernel is fitted": logged("craft for the kernel: done"),
    "while a checkpoint is written": appeared("bundle.work/checkpoints/.denoiser.safetensors.*.partial"),
    "after the denoiser, before the bundle": logged("\ndenoiser: done"),
    "while the bundle is written": appeared(".bundle.*.partial/*"),
}


def test_a_fit_that_is_killed_at_every_point_ends_as_if_nothing_had_been(undisturbed, tmp_path):
    for point, reached in POINTS.items():
        assert not (tmp_path / "log").exists() or not reached(tmp_path), f"{point}: was there before"
        process = start(tmp_path, "--resume")
        while not reached(tmp_path):
            assert process.poll() is None, f"ended before it was killed {point}: {(tmp_path / 'log').read_text()}"
            time.sleep(0.0005)  # look again; nothing depends on how long this takes
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        assert not (tmp_path / "bundle").exists()

    resumed = finish(tmp_path, "--resume")
    for name in TENSORS:
        assert resumed[name].keys() == undisturbed[name].keys()
        for key, tensor in undisturbed[name].items():
            assert torch.equal(resumed[name][key], tensor), f"{name}: {key}"

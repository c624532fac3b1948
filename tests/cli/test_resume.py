"""A fit that is killed, truly (SIGKILL), goes on with --resume to the very tensors of an undisturbed run."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes

SETTINGS = (
    "attack.eps=0.2", "attack.step=0.1", "attack.steps=2", "attack.batch_size=100", "kernel.epochs=10",
    "detector.permutations=10", "detector.max_batch_size=10",
    "denoiser.width=0.1", "denoiser.epochs=3", "denoiser.batch_size=100", "denoiser.sigma=0.1", "classifier.epochs=3",
)  # fmt: skip
TENSORS = ("classifier.safetensors", "detector.safetensors", "denoiser.safetensors")


COMMAND = ["fit", "--data", "digits", "--classifier", "cnn", "--out", "bundle", *(f"--set={one}" for one in SETTINGS)]


def tensors(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {name: load_file(folder / "bundle" / name) for name in TENSORS}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run([sys.executable, "-m", "twoprong", *COMMAND], cwd=folder, check=True, timeout=300)
    return tensors(folder)


def start(folder: Path):
    return processes.start([*COMMAND, "--resume"], folder, folder / "log", folder / "log")


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
        process = start(tmp_path)
        while not reached(tmp_path):
            assert process.is_alive(), f"ended before it was killed {point}: {(tmp_path / 'log').read_text()}"
            time.sleep(0.0005)  # look again; nothing depends on how long this takes
        process.kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert not (tmp_path / "bundle").exists()

    process = start(tmp_path)
    process.join(300)
    assert process.exitcode == 0, (tmp_path / "log").read_text()
    resumed = tensors(tmp_path)
    for name in TENSORS:
        assert resumed[name].keys() == undisturbed[name].keys()
        for key, tensor in undisturbed[name].items():
            assert torch.equal(resumed[name][key], tensor), f"{name}: {key}"

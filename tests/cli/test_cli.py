"""The command as a user runs it: a real process, its exit code, its two streams."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import twoprong as tp
from twoprong.__main__ import main
from twoprong.manifest import FORMAT
from twoprong.measure import over_batches
from twoprong.seeds import generator

pytestmark = pytest.mark.usefixtures("rough")

FAST = """
[attack]
eps = 0.2
step = 0.1
steps = 2
[kernel]
epochs = 5
[detector]
permutations = 50
max_batch_size = 100
[denoiser]
width = 0.1
epochs = 1
batch_size = 100
sigma = 0.1
[classifier]
epochs = 3
batch_size = 64
augment = false
"""
DIGITS = ("fit", "--data", "digits", "--classifier", "cnn", "--out", "bundle")


def twoprong(*arguments, cwd=None):
    command = [sys.executable, "-m", "twoprong", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


def inside(*arguments, cwd=None):
    """The same in this process, where torch is loaded already."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["twoprong", *map(str, arguments)])
        patch.setattr(sys, "path", ["", *sys.path])  # as a command has it
        patch.chdir(cwd or ".")
        with pytest.raises(SystemExit) as ended:
            main()
    return subprocess.CompletedProcess(arguments, ended.value.code, out.getvalue(), err.getvalue())


def refused(run) -> str:
    """The message of a run that failed by the user's mistake: exit code 2, nothing on stdout, no traceback."""
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    return run.stderr


def test_fit_with_the_papers_settings(tmp_path):
    """As the paper has it, but for what takes long; a file of settings or --set changes single ones."""
    speed = ["denoiser.width=0.1", "denoiser.epochs=1", "kernel.epochs=5", "attack.eps=0.2"]
    speed += ["classifier.epochs=3", "classifier.batch_size=64", "classifier.augment=false"]
    run = inside(*DIGITS, "--preset", "paper", "--json", *(f"--set={one}" for one in speed), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    config = tp.load(tmp_path / "bundle").config
    assert (config.detector.threshold, config.detector.statistic, config.kernel.lr) == (0.5, "paired", 2e-4)
    assert (config.attack.eps, config.attack.step, config.denoiser.epochs) == (0.2, 2 / 255, 1)
    assert "did you mean 'paper'?" in refused(inside(*DIGITS[:-1], "other", "--preset", "papr", cwd=tmp_path))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    (folder / "fast.toml").write_text(FAST)
    run = twoprong(*DIGITS, "--config", "fast.toml", "--json", cwd=folder)
    assert run.returncode == 0, run.stderr
    return folder, run


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "notes").write_text("a file, so nothing can be below it")
    for below in (("demo", "--out", "notes/demo"), (*DIGITS[:-1], "notes/bundle")):
        message = refused(inside(*below, cwd=tmp_path))
        assert "notes" in message
        assert len(message.strip().splitlines()) == 1


def test_fit_writes_a_bundle_and_a_summary_for_machines(fitted):
    folder, run = fitted
    summary = json.loads(run.stdout)
    assert summary["bundle"] == "bundle"
    assert 0.5 < summary["clean_bare"] <= 1
    assert "clean test images" in run.stderr
    defense = tp.load(folder / "bundle")
    assert defense.config.denoiser.epochs == 1
    assert defense.about["classes"] == list("0123456789")
    assert not (folder / "bundle.work" / "checkpoints").exists()


def test_fit_does_not_touch_a_bundle_that_is_there(fitted):
    folder, _ = fitted
    before = (folder / "bundle" / "manifest.json").read_bytes()
    message = refused(inside(*DIGITS, cwd=folder))
    assert "bundle: exists already" in message
    assert (folder / "bundle" / "manifest.json").read_bytes() == before


def test_a_fit_that_was_killed_after_it_wrote_its_bundle_is_finished(fitted):
    folder, _ = fitted
    (folder / "bundle.work" / "checkpoints").mkdir()
    before = (folder / "bundle" / "manifest.json").read_bytes()
    run = inside(*DIGITS, "--config", "fast.toml", "--resume", cwd=folder)
    assert run.returncode == 0, run.stderr
    assert "bundle: finished already" in run.stdout
    assert not (folder / "bundle.work" / "checkpoints").exists()
    assert "bundle: exists already" in refused(inside(*DIGITS, "--resume", cwd=folder))  # other settings
    assert (folder / "bundle" / "manifest.json").read_bytes() == before


def test_inspect_shows_and_prints_the_manifest(fitted):
    folder, _ = fitted
    shown = inside("inspect", "bundle", cwd=folder)
    assert shown.returncode == 0
    assert "all files verified" in shown.stdout
    assert json.loads(inside("inspect", "bundle", "--json", cwd=folder).stdout)["format"] == FORMAT


def test_inspect_of_a_damaged_bundle_is_one_line_that_names_the_file(fitted, tmp_path):
    tp.load(fitted[0] / "bundle").save(tmp_path / "damaged")
    file = tmp_path / "damaged" / "detector.safetensors"
    file.write_bytes(file.read_bytes() + b"x")
    message = refused(inside("inspect", tmp_path / "damaged"))
    assert "detector.safetensors: damaged" in message
    assert len(message.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "digit"), "did you mean 'digits'"),
        (("--data", "cifar10"), "--data-root"),
        (("--data", "cifar10-small"), "test images only"),
        (("--classifier", "resnet81"), "resnet18"),
        (("--classifier", "no_such_module:make"), "MODULE:FACTORY"),
        (("--set", "denoiser.alhpa=1", "--set", "sed=2"), "2 problems"),
        (("--set", "denoiser.alhpa=1"), "did you mean 'alpha'?"),
        (("--config", "absent.toml"), "absent.toml"),
        (("--weights", "absent.safetensors"), "absent.safetensors"),
        (("--image-size", "9"), "--image-size"),
    ],
)
def test_mistakes_get_exit_code_2_and_a_way_out(tmp_path, arguments, message):
    given = {"--data": "digits", "--classifier": "cnn", "--out": "bundle"}
    rest = [part for name, value in given.items() if name not in arguments for part in (name, value)]
    assert message in refused(inside("fit", *arguments, *rest, cwd=tmp_path))
    assert not (tmp_path / "bundle").exists()


def test_cuda_that_is_not_there_is_said(tmp_path):
    if torch.cuda.is_available():
        pytest.fail("this test needs a machine without CUDA; CI has none")
    assert "no CUDA device" in refused(inside(*DIGITS, "--device", "cuda", cwd=tmp_path))


@pytest.fixture(scope="module")
def folder_data(tmp_path_factory, digits):
    """240 digits of three classes as PNG and JPEG files, 12 x 12, and one file that is no image."""
    root = tmp_path_factory.mktemp("images")
    for name in "012":
        (root / name).mkdir()
        chosen = digits.train.images[digits.train.labels == int(name)][:80]
        for number, image in enumerate(chosen):
            pixels = (image[0] * 255).byte().numpy()
            suffix = "png" if number % 2 else "jpg"
            Image.fromarray(pixels).resize((12, 12)).save(root / name / f"{number:03d}.{suffix}", quality=95)
    (root / "1" / "broken.png").write_bytes(b"not an image")
    return root


def test_fit_on_a_folder_names_and_skips_an_unreadable_image(folder_data, tmp_path):
    (tmp_path / "fast.toml").write_text(FAST)
    arguments = ("fit", "--data", folder_data, "--classifier", "cnn", "--config", "fast.toml", "--out", "bundle")
    arguments += ("--set", "classifier.epochs=12")
    assert "broken.png" in refused(inside(*arguments, "--strict", cwd=tmp_path))
    run = inside(*arguments, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "broken.png" in run.stderr.replace("\n", "")
    defense = tp.load(tmp_path / "bundle")
    assert defense.about["classes"] == ["0", "1", "2"]
    assert tuple(defense.detector.reference_pixels.shape[1:]) == (1, 12, 12)


FACTORY = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    def forward(self, x):
        return self.body(x)

def make():
    return Net()

def number():
    return 7
"""


def test_fit_around_a_users_own_classifier_with_weights(tmp_path, digits):
    (tmp_path / "fast.toml").write_text(FAST)
    (tmp_path / "mynet.py").write_text(FACTORY)
    namespace: dict = {}
    exec(FACTORY, namespace)
    model = namespace["make"]()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(digits.train.images), digits.train.labels).backward()
        optimiser.step()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    arguments = ("fit", "--data", "digits", "--config", "fast.toml", "--out", "bundle", "--held-out", "none")
    assert "torch.nn.Module, got int" in refused(inside(*arguments, "--classifier", "mynet:number", cwd=tmp_path))
    run = inside(*arguments, "--classifier", "mynet:make", "--weights", "weights.safetensors", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    with pytest.raises(tp.errors.BundleError, match=r"made by mynet:make.*--allow mynet"):
        tp.load(tmp_path / "bundle")
    assert len(tp.load(tmp_path / "bundle", classifier=model)(digits.test.images[:30]).labels) == 30
    wrong = inside(*arguments, "--overwrite", "--classifier", "cnn", "--weights", "weights.safetensors", cwd=tmp_path)
    assert "not cnn's weights" in refused(wrong)


def test_attack_writes_images_outcomes_and_pictures(fitted, digits):
    folder, _ = fitted
    arguments = ("--data", "digits", "--attack", "pgd", "--eps", "1/5", "--set", "steps=5", "--images", "50")
    files = ("--batch-size", "20", "--out", "a.npz", "--pictures", "strips", "--json")
    run = inside("attack", "bundle", *arguments, *files, cwd=folder)
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    with np.load(folder / "a.npz") as file:
        stored = {name: file[name] for name in file.files}
    assert stored["images"].shape == stored["originals"].shape == (50, 1, 8, 8)
    assert np.array_equal(stored["originals"], digits.test.images[:50].numpy())
    assert np.abs(stored["images"] - stored["originals"]).max() <= 0.2 + 1e-6
    assert np.array_equal(stored["labels"], digits.test.labels[:50].numpy())
    assert stored["correct"].shape == (10, 50)
    assert summary["accuracy"] == pytest.approx(stored["correct"].mean())
    hits = [part.sum() for part in np.split(stored["correct"].mean(0), [20, 40])]
    assert summary["accuracy_interval_batches"] == pytest.approx(over_batches(hits, [20, 20, 10]))
    assert stored["batch"].tolist() == [0] * 20 + [1] * 20 + [2] * 10
    assert sorted(file.name for file in (folder / "strips").iterdir()) == ["0000.png", "0001.png", "0002.png"]
    assert Image.open(folder / "strips" / "0000.png").size == (10 * 64, 3 * 64)
    bare = json.loads(inside("attack", "bundle", *arguments, "--bare", "--json", cwd=folder).stdout)
    defense = tp.load(folder / "bundle")
    result = tp.attacks.ATTACKS["pgd"](eps=0.2, steps=5)(
        defense.classifier, digits.test.images[:50], digits.test.labels[:50], generator(0, "attack", 0)
    )
    assert bare["accuracy"] == pytest.approx(result.accuracy)
    assert bare["batches_flagged"] == 0
    assert bare["accuracy_interval_batches"] is None  # of one batch


def test_attack_on_some_slots_reports_what_became_of_them(fitted):
    folder, _ = fitted
    arguments = ("--data", "digits", "--attack", "fgsm", "--images", "40", "--slots", "10%", "--json")
    summary = json.loads(inside("attack", "bundle", *arguments, cwd=folder).stdout)
    assert summary["eps"] == tp.load(folder / "bundle").config.attack.eps  # the budget that it was fitted for
    assert summary["slots_attacked"] == summary["images_changed"] == 4
    whole = (4 * summary["accuracy_on_slots"] + 36 * summary["accuracy_on_others"]) / 40
    assert summary["accuracy"] == pytest.approx(whole)


def test_the_packaged_bundle_works_by_its_name_alone(tmp_path):
    shown = inside("inspect", "cifar10-small", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "all files verified" in shown.stdout
    attack = ("--attack", "fgsm", "--images", "10", "--batch-size", "10", "--json")
    run = inside("attack", "cifar10-small", *attack, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout)
    assert summary["images"] == summary["images_changed"] == 10


def test_images_must_be_named_for_any_other_bundle(fitted):
    assert "--data: expected digits, cifar10" in refused(inside("evaluate", "bundle", cwd=fitted[0]))


def test_a_work_directory_with_other_peoples_files_keeps_them(tmp_path):
    (tmp_path / "fast.toml").write_text(FAST)
    (tmp_path / "precious.safetensors").write_bytes(b"years of work")
    run = inside(*DIGITS, "--config", "fast.toml", "--work", ".", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "precious.safetensors").read_bytes() == b"years of work"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bundle", "--attack", "pdg"), "did you mean pgd?"),
        (("bundle", "--attack", "pgd", "--eps", "8/x"), "8/255"),
        (("bundle", "--attack", "pgd", "--eps", "8"), "8/255?"),
        (("bundle", "--attack", "pgd", "--norm", "l7", "--eps", "1"), "linf, l2"),
        (("bundle", "--attack", "pgd", "--norm", "l2"), "expected --eps beside it"),
        (("bundle", "--attack", "pgd", "--pictures", "bundle/manifest.json"), "there is a file"),
        (("bundle", "--attack", "pgd", "--set", "stepz=3"), "steps"),
        (("bundle", "--attack", "pgd", "--set", "steps=0"), "steps: expected"),
        (("bundle", "--attack", "pgd", "--slots", "120%"), "share"),
        (("--attack", "pgd"), "BUNDLE"),
        (("--attack", "pgd", "--classifier", "cnn"), "--weights"),
        (("nowhere", "--attack", "pgd"), "no such bundle"),
        (("bundle", "--attack", "pgd", "--images", "300", "--batch-size", "300"), "one of 300 cannot be tested"),
        (("bundle", "--attack", "evade", "--set", "penalties=5"), "penalties: expected a list"),
        (("bundle", "--attack", "pgd", "--set", "random_start=7"), "random_start: expected true or false"),
    ],
)
def test_mistakes_about_attacks_are_said(fitted, arguments, message):
    assert message in refused(inside("attack", *arguments, "--data", "digits", cwd=fitted[0]))

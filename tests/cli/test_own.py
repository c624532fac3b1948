"""A classifier that is not ours and a folder whose names are not in its order: right numbers, or a refusal with the fix."""

import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import twoprong as tp
from twoprong.cli import app
from twoprong.errors import TwoprongError
from twoprong.evaluation.protocols import PROTOCOLS
from twoprong.seeds import generator, initialised

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from try_adapters import make_importable

pytestmark = pytest.mark.usefixtures("rough")

NAMES = ("zero", "one", "two", "three")  # the order of the net's outputs; by the alphabet it is one, three, two, zero
FACTORY = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
"""
FAST = (
    "attack.eps=0.2", "attack.step=0.05", "kernel.epochs=5", "detector.permutations=50", "detector.max_batch_size=60",
    "denoiser.width=0.1", "denoiser.epochs=2", "denoiser.batch_size=50", "denoiser.sigma=0.1",
)  # fmt: skip


def save(images, folder, mode="L"):
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        Image.fromarray((image[0] * 255).byte().numpy()).convert(mode).save(folder / f"{number:03d}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory, digits):
    """photos/{train,val,test}, nets.py with a factory, its trained weights as a .pt, and as a checkpoint of a training."""
    root = tmp_path_factory.mktemp("own")
    images, labels = digits.train.images, digits.train.labels
    learned = []
    for label, name in enumerate(NAMES):
        mine = images[labels == label]
        learned.append(mine[:70])
        for part, chosen in {"train": mine[:70], "val": mine[70:110], "test": mine[110:]}.items():
            save(chosen, root / "photos" / part / name)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    targets = torch.arange(4).repeat_interleave(torch.tensor([len(part) for part in learned]))
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(torch.cat(learned)), targets).backward()
        optimiser.step()
    torch.save({"epoch": 60, "state_dict": net.state_dict()}, root / "net.pt")
    (root / "own_nets.py").write_text(FACTORY)
    (root / "names.txt").write_text("\n".join(NAMES) + "\n")
    return root


@pytest.fixture
def inside(place, monkeypatch):
    """In the directory, with `own_nets` importable as the command makes it; both are undone afterwards."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield place
    sys.modules.pop("own_nets", None)


def fit(*more, out):
    settings = [part for setting in FAST for part in ("--set", setting)]
    ours = ("fit", "--data", "photos", "--classifier", "own_nets:make", "--out", out, "--json")
    return CliRunner().invoke(app, [*ours, *more, *settings])


def readme(command: str) -> list[str]:
    """What the README writes behind this command, for an own classifier; with the names of these images and this network."""
    text = (
        (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split("\n## Protect your own classifier\n")[1]
    )
    (written,) = re.findall(rf"^    twoprong ({command} (?:.*\\\n)*.*)$", text, re.MULTILINE)
    ours = {"\\\n": "", "cat,dog,bird": ",".join(NAMES), "mypackage.nets": "own_nets", "64": "8"}
    for theirs, mine in ours.items():
        written = written.replace(theirs, mine)
    return shlex.split(written)


def refused(run) -> str:
    assert isinstance(run.exception, TwoprongError), run.output
    return str(run.exception)


WEIGHTS = ("--weights", "net.pt")
VAL = ("--held-out", "val")
CLASSES = ("--classes", "zero,one,two,three")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*WEIGHTS, *VAL), "--classes a,b,c"),
        ((*VAL, *CLASSES), "--weights-inside"),
        ((*VAL, *CLASSES, "--weights-inside"), "Are its weights loaded"),
        ((*WEIGHTS, *CLASSES), "none: it has learned no image"),
        ((*WEIGHTS, *CLASSES, "--held-out", "photos/train"), "280 of 280 images are among the images to learn from"),
        ((*WEIGHTS, *CLASSES, "--held-out", "photos/test"), "are among the images to learn from or the held-out ones, too"),
        ((*WEIGHTS, *VAL, "--classes", "zero,one,two"), "three, which is not among zero, one, two"),
        ((*WEIGHTS, *VAL, "--classes", "zero,one,two,three,four"), "expected 4 different names"),
        ((*WEIGHTS, *VAL, "--classes", "zero,two,one,three"), "class 1 (two), which it calls class 2 (one)"),
        ((*WEIGHTS, *VAL, "--classes", "@absent.txt"), "absent.txt"),
        ((*WEIGHTS, *VAL, *CLASSES, "--image-size", "9"), "--image-size N"),
        ((*WEIGHTS, *VAL, *CLASSES, "--mean", "0.5"), "both or neither"),
        ((*WEIGHTS, *VAL, *CLASSES, "--mean", "half", "--std", "1"), "--mean half"),
        (("--weights", "names.txt", *VAL, *CLASSES), "names.txt"),
    ],
)
def test_a_trap_is_refused_with_the_way_out(inside, arguments, message):
    assert message in refused(fit(*arguments, out="none"))
    assert not (inside / "none").exists()


@pytest.fixture
def short(monkeypatch):
    """The protocol `quick` without the attackers who know the defence."""
    quick = PROTOCOLS["quick"]
    monkeypatch.setitem(
        PROTOCOLS, "quick", lambda setting: [one for one in quick(setting) if one.threat in ("noise", "bare")]
    )


@pytest.fixture(scope="module")
def fitted(place):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", ["", *sys.path])
        settings = [part for setting in FAST for part in ("--set", setting)]
        run = CliRunner().invoke(app, [*readme("fit"), "--json", *settings])
        sys.modules.pop("own_nets", None)
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout)


def test_names_in_the_classifiers_order_make_a_right_bundle(inside, fitted):
    assert fitted["clean_bare"] > 0.9
    assert fitted["images"].endswith(" test images")
    assert fitted["attacked_bare"] < fitted["clean_bare"]
    low, high = fitted["false_alarm_interval"]
    assert low <= fitted["false_alarm_rate"] <= high
    defense = tp.load("bundle", allow=["own_nets"])
    assert defense.about["classes"] == list(NAMES)
    assert "twoprong" in defense.about["measured"]["command"]
    card = (inside / "bundle" / "README.md").read_text()
    assert "Classes: zero, one, two, three" in card
    assert "found among" in card


def test_a_resumed_fit_whose_bundle_is_written_is_finished(inside, fitted):
    settings = [part for setting in FAST for part in ("--set", setting)]
    run = CliRunner().invoke(app, [*readme("fit"), "--resume", "--json", *settings])
    assert run.exit_code == 0, run.exception
    assert json.loads(run.stdout) == {"bundle": "bundle", "finished": True}


def test_a_bundle_runs_a_factory_only_if_its_module_is_allowed(inside, fitted):
    sys.modules.pop("own_nets", None)
    for allow in ((), ("own", "own_nets:make", "nets")):
        with pytest.raises(TwoprongError, match=r"made by own_nets:make.*allow=\['own_nets'\]"):
            tp.load("bundle", allow=allow)
    assert "own_nets" not in sys.modules
    attack = ["attack", "bundle", "--data", "photos", "--attack", "fgsm", "--batch-size", "40"]
    assert "--allow own_nets" in refused(CliRunner().invoke(app, attack))


PARTS = {"test": ("test",), "val": ("val",), "train": ("train",), "all": ("train", "val", "test")}


@pytest.mark.parametrize("split", PARTS)
def test_attack_takes_the_bundles_names_and_the_part_asked_for(inside, fitted, split):
    count = sum(len(list(inside.glob(f"photos/{part}/*/*"))) for part in PARTS[split])
    asked = ["--attack", "noise", "--eps", "0.01", "--images", "1000", "--batch-size", "40", "--split", split, "--bare"]
    run = CliRunner().invoke(app, ["attack", "bundle", "--data", "photos", "--allow", "own_nets", *asked, "--json"])
    assert run.exit_code == 0, run.output
    summary = json.loads(run.stdout)
    assert summary["images"] == count
    assert summary["accuracy"] > 0.9  # labels in another order than the bundle's would leave a quarter or less


def test_force_goes_on_and_says_what_is_wrong(inside, caplog):
    run = fit(*WEIGHTS, *VAL, "--force", out="forced")
    assert run.exit_code == 0, run.output
    assert "Are the labels in the order" in caplog.text
    assert json.loads(run.stdout)["clean_bare"] < 0.6


def test_without_a_test_part_the_numbers_say_what_they_are_from(inside, fitted):
    for part in ("train", "val"):
        (inside / "two" / part).parent.mkdir(exist_ok=True)
        (inside / "two" / part).symlink_to(inside / "photos" / part)
    run = fit(*WEIGHTS, *VAL, "--classes", "names.txt", "--data", "two", out="two-bundle")
    assert run.exit_code == 0, run.output
    assert "calibration images" in json.loads(run.stdout)["images"]
    assert "may have learned" in run.stderr


def test_arguments_that_are_no_utf8_and_brackets_are_escaped(inside, fitted, short, monkeypatch):
    """A directory's name may be any bytes; the report and the card, which tell the command, are UTF-8."""
    settings = [part for setting in FAST for part in ("--set", setting)]
    (inside / "[b] \udce9").mkdir()
    (inside / "[b] \udce9" / "photos").symlink_to(inside / "photos")
    data = ["--data", "[b] \udce9/photos"]
    fewer = ["--images", "10", "--batch-size", "10"]
    for command, file in (
        ([*readme("fit"), *data, "--out", "[b] fit", *settings], "[b] fit/README.md"),
        (["inspect", "[b] fit"], None),
        (["attack", "[b] fit", *data, "--attack", "fgsm", "--images", "40", "--allow", "own_nets"], None),
        ([*readme("evaluate"), *data, *fewer, "--out", "[b] report"], "[b] report/results.md"),
    ):
        monkeypatch.setattr(sys, "argv", ["twoprong", *command])
        run = CliRunner().invoke(app, command)
        assert run.exit_code == 0, run.exception
        assert "[b]" in run.stdout
        assert file is None or r"[b] \udce9/photos" in Path(file).read_text(encoding="utf-8")
    assert r"[b] \udce9/photos" in Path("[b] report/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [("fit",), ("evaluate",), ("reproduce", "table1-linf")], ids=str)
def test_a_place_to_write_to_has_a_name_in_utf8(inside, fitted, command):
    """safetensors opens no other file: the bundle could not be loaded, nor the run resumed."""
    given = [*command, "--out", "\udce9"] if len(command) > 1 else [*readme(*command), "--out", "\udce9"]
    assert r"--out \udce9: expected a name in UTF-8" in refused(CliRunner().invoke(app, given))


def test_the_report_is_about_the_right_classes(inside, fitted, monkeypatch):
    monkeypatch.setattr("twoprong.evaluation.protocols.HIDING", {"steps": 10, "penalties": (1.0,)})
    run = CliRunner().invoke(app, [*readme("evaluate"), "--images", "10", "--batch-size", "10", "--json"])
    assert run.exit_code == 0, run.output
    results = json.loads((inside / "evaluation" / "results.json").read_text())
    assert results["clean"]["subjects"]["bare"]["accuracy"] > 0.8
    assert results["defense"]["classes"] == list(NAMES)


@pytest.fixture(scope="module")
def accuracy(place, digits):
    """colour/{train,val,test}, the weights of a small ResNet of timm that has learned train; gives its accuracy on test."""
    make_importable()
    with initialised(0, "a network of timm"):
        net = importlib.import_module("timm").create_model("test_resnet", pretrained=False, num_classes=4)
    mean, std = (torch.tensor(net.pretrained_cfg[name]).view(3, 1, 1) for name in ("mean", "std"))
    parts = {"train": slice(70), "val": slice(70, 110), "test": slice(110, None)}
    images = {name: [] for name in parts}
    for label, name in enumerate(NAMES):
        mine = digits.train.images[digits.train.labels == label]
        for part, some in parts.items():
            save(mine[some], place / "colour" / part / name, "RGB")
            images[part].append((mine[some] * 255).byte() / 255)
    labels = {part: torch.arange(4).repeat_interleave(torch.tensor([*map(len, found)])) for part, found in images.items()}
    shown = {part: (torch.cat(found).expand(-1, 3, -1, -1) - mean) / std for part, found in images.items()}
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for chosen in torch.randperm(8 * 280, generator=generator(0, "order")).fmod(280).split(40):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(shown["train"][chosen]), labels["train"][chosen]).backward()
        optimiser.step()
    torch.save(net.state_dict(), place / "timm.pt")
    with torch.no_grad():
        return (net.eval()(shown["test"]).argmax(1) == labels["test"]).double().mean().item()


def test_a_network_of_a_package_goes_the_readmes_way(inside, accuracy, short):
    """From fit to the report, with the classes in the order of its outputs; without them the fit is refused."""
    ours = {"own_nets:make": "timm:test_resnet", "net.pt": "timm.pt", "photos": "colour", "own_nets": "timm"}
    ours |= {"bundle": "timm-bundle", "evaluation": "timm-evaluation"}
    fitting, evaluating = ([ours.get(word, word) for word in readme(command)] for command in ("fit", "evaluate"))
    fitting += ["--json", *(f"--set={setting}" for setting in FAST)]
    at = fitting.index("--classes")
    assert "--classes a,b,c" in refused(CliRunner().invoke(app, [*fitting[:at], *fitting[at + 2 :]]))
    assert not Path("timm-bundle").exists()
    few = [{"colour": "fewer"}.get(word, word) for word in [*fitting[:at], *fitting[at + 2 :]]]
    for part in ("train", "val", "test"):
        for name in NAMES[:3]:
            (inside / "fewer" / part).mkdir(parents=True, exist_ok=True)
            (inside / "fewer" / part / name).symlink_to(inside / "colour" / part / name)
    assert "has 4 outputs, the data have 3 classes" in refused(CliRunner().invoke(app, few))
    run = CliRunner().invoke(app, fitting)
    assert run.exit_code == 0, run.exception
    assert accuracy > 0.9
    assert json.loads(run.stdout)["clean_bare"] == pytest.approx(accuracy)
    manifest = json.loads(CliRunner().invoke(app, ["inspect", "timm-bundle", "--json"]).stdout)
    assert manifest["about"]["classes"] == list(NAMES)
    assert manifest["parts"]["networks"]["classifier"]["spec"]["name"] == "timm:test_resnet"
    run = CliRunner().invoke(app, [*evaluating, "--images", "40", "--batch-size", "40"])
    assert run.exit_code == 0, run.exception
    results = json.loads(Path("timm-evaluation/results.json").read_text())
    assert results["defense"]["classes"] == list(NAMES)
    assert results["clean"]["subjects"]["bare"]["accuracy"] > 0.8
    pgd = next(attack for attack in results["attacks"] if attack["name"] == "pgd")
    assert pgd["subjects"]["bare"]["accuracy"] < results["clean"]["subjects"]["bare"]["accuracy"]

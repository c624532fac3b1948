"""`evaluate` as a whole: the same numbers however it is called, killed or not, and recomputed by hand."""

import copy
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import twoprong as tp
from twoprong.attacks.base import Attack
from twoprong.attacks.evade import Evade
from twoprong.attacks.noise import Noise
from twoprong.attacks.partial import Partial
from twoprong.attacks.pgd import PGD
from twoprong.cli import app
from twoprong.cli.evaluate import _show as show
from twoprong.data import load_data
from twoprong.errors import InputError
from twoprong.evaluation import pieces as pieces_module
from twoprong.evaluation.protocols import Item
from twoprong.evaluation.run import evaluate_part
from twoprong.models.features import Features
from twoprong.recipe import paper_defense
from twoprong.results import EvaluationResults, read_results
from twoprong.results.part import Origin
from twoprong.storage import fingerprint

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes

EPS = 0.2
SIZES = ["--images", "20", "--batch-size", "10"]
SETTINGS = {"batch_size": 10, "count": 20, "seed": 3}
ITEMS = [
    Item("noise", "noise", Noise(eps=EPS), "bare"),
    Item("pgd", "bare", PGD(eps=EPS, steps=5), "bare", curve="pgd", keep=True),
    Item("pgd small", "bare", PGD(eps=EPS / 4, steps=5), "bare", curve="pgd", keep=True),
    Item("evade", "adaptive", Evade(eps=EPS, steps=5, penalties=(1.0,))),
    Item("evade 10%", "partial", Partial(attack=Evade(eps=EPS, steps=5, penalties=(1.0,)), share=0.1)),
]


MINE = """
import torch
from twoprong.models.zoo import build


def make():
    own = torch.nn.Sequential(build("cnn", 10, 1))
    own.load_state_dict(torch.load("own.pt", weights_only=True))
    return own.eval()
"""


@pytest.fixture(scope="module")
def own(defense):
    """A user's classifier."""
    return torch.nn.Sequential(defense.classifier)


@pytest.fixture(scope="module")
def place(own, defense, digits, tmp_path_factory):
    """A folder with a bundle that is without its classifier, and with what a command makes that of."""
    folder = tmp_path_factory.mktemp("evaluate")
    about = {"classes": list(digits.classes), "data": digits.name}
    whole = paper_defense(own, Features(own), defense.detector, defense.flagged.denoiser, defense.config, about)
    whole.save(folder / "bundle")
    torch.save(own.state_dict(), folder / "own.pt")
    (folder / "mine.py").write_text(MINE)
    return folder


@pytest.fixture(scope="module")
def photos(place, digits):
    """A few of the digits, as files beside the bundle: baselines learn from all that there are."""
    for part, count in (("train", 100), ("test", 60)):
        for number, (image, label) in enumerate(zip(*vars(getattr(digits, part)[:count]).values(), strict=True)):
            path = place / "photos" / part / str(int(label)) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image[0] * 255).byte().numpy()).save(path)
    return load_data(str(place / "photos"))


def numbers(results):
    """Everything but when, where and how long. Takes the content of the file, or the results themselves."""
    results = results.as_dict() if isinstance(results, EvaluationResults) else results
    text = json.dumps({key: value for key, value in results.items() if key not in ("seconds", "made_with")})
    content = json.loads(re.sub(r'"seconds": [\d.e-]+', '"seconds": 0', text))
    content["run"] |= {"started": "", "command": "", "data": ""}
    return content


@pytest.fixture(scope="module")
def killed(place, own, photos):
    """`quick` on the command line, killed twice, its second half done by another, then resumed to the end.

    Its results, and what was there at each kill.
    """
    given = ["--data", "photos", "--classifier", "mine:make", "--seed", "3", "--out", "out"]
    arguments = ["evaluate", "bundle", *given, *SIZES, "--resume", "--json"]
    work, log, snapshots = place / "out" / "work", place / "log", []
    for pieces in (4, 20):
        process = processes.start(arguments, place, log, log)
        while len(list(work.rglob("*.safetensors"))) < pieces:
            assert process.is_alive(), log.read_text()
            time.sleep(0.01)  # look again; nothing depends on how long this takes
        process.kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        snapshots.append({path: path.stat().st_mtime_ns for path in work.rglob("*.safetensors")})
    defense = tp.load(place / "bundle", classifier=own)
    done = evaluate_part(defense, photos.test, None, "quick", place / "out", (2, 2), **SETTINGS, train=photos.train)
    there = {(path.parent.name, path.stem) for path in (work / "attacks").rglob("*.safetensors")}
    assert 0 < done <= len(there)
    command = [sys.executable, "-m", "twoprong", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr
    return place / "out", json.loads(run.stdout), snapshots


def test_a_run_killed_twice_computes_nothing_twice(killed, place, own, photos, monkeypatch, tmp_path):
    folder, results, snapshots = killed
    first, second = snapshots
    assert 0 < len(first) < len(second)
    for path, written in (first | second).items():
        assert path.stat().st_mtime_ns == written
    assert not list(folder.rglob(".*.partial"))
    # Python goes on with the command's run, which it can only do if weights, images and settings are the same to the bit.
    shutil.copytree(folder, tmp_path / "out")
    before = sorted((tmp_path / "out").rglob("*.safetensors"))
    loaded = tp.load(place / "bundle", classifier=own)
    monkeypatch.setattr(Attack, "__call__", None)  # what is there is not made again
    resumed = tp.evaluate(loaded, photos.test, **SETTINGS, train=photos.train, out=tmp_path / "out", resume=True)
    assert numbers(resumed.results) == numbers(results)
    assert sorted((tmp_path / "out").rglob("*.safetensors")) == before


def test_python_gives_the_same_numbers_as_the_killed_command(killed, place, own, photos):
    """The command imports the classifier, Python hands it over."""
    _, results, _ = killed
    loaded = tp.load(place / "bundle", classifier=own)
    again = tp.evaluate(loaded, photos.test, **SETTINGS, train=photos.train)  # without a folder to keep things in
    assert numbers(again.results) == numbers(results)
    assert again.worst_case == results["worst_case"]["defense"]["per_batch"]


def test_the_worst_case_recomputed_by_hand(killed):
    """Independent of the package: from the counts in results.json alone."""
    folder, _, _ = killed
    results = json.loads((folder / "results.json").read_text())
    for subject, stated in results["worst_case"].items():
        batches, images = [], []
        for number, batch in enumerate(results["batches"]):
            entries = [a["batches"][number]["subjects"][subject] for a in results["attacks"] if a["in_worst_case"]]
            safe = [
                [(c + r) / len(e["by_draw"]) for c, r in zip(e["correct"], e["rejected"] or [0] * 999, strict=False)]
                for e in entries
            ]
            batches += [min(sum(one) for one in safe)]
            images += [min(column) for column in zip(*safe, strict=True)]
            assert len(safe[0]) == len(batch["labels"])
        assert stated["per_batch"] == pytest.approx(sum(batches) / len(images))
        assert stated["per_sample"] == pytest.approx(sum(images) / len(images))


def test_the_file_is_what_is_printed_and_is_written_as_it_is_read(killed):
    folder, printed, _ = killed
    text = (folder / "results.json").read_text()
    assert json.loads(text) == printed
    results = read_results(folder / "results.json")
    assert json.dumps(results.as_dict(), indent=1, allow_nan=False) + "\n" == text
    for attack in results.attacks:
        assert all(len(batch.subjects["defense"].by_draw) >= 10 for batch in attack.batches)


def test_batches_are_formed_once_and_attacks_stay_in_their_ball(killed):
    _, results, _ = killed
    indices = [index for batch in results["batches"] for index in batch["indices"]]
    assert len(set(indices)) == len(indices) == results["run"]["images"] == 20
    for attack in results["attacks"]:
        for batch in attack["batches"]:
            assert batch["distance"] <= attack["eps"] + 1e-6
            assert batch["lowest"] >= 0
            assert batch["highest"] <= 1


def test_reports_are_written(killed):
    folder, results, _ = killed
    page, table = (folder / "report.html").read_text(), (folder / "results.md").read_text()
    for attack in results["attacks"]:
        assert attack["name"] in page
        assert attack["name"] in table
    assert results["run"]["command"].startswith("twoprong evaluate")
    assert results["run"]["command"].replace("'", "&#39;") in page


def test_the_report_of_a_run_opens_in_a_browser(killed, visit, tmp_path):
    folder, results, _ = killed
    page, wrong = visit(folder / "report.html", "phone", "dark")
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    assert (tmp_path / "report.png").stat().st_size > 50_000
    sources = page.eval_on_selector_all("[data-source]", "drawn => drawn.map(one => one.dataset.source)")
    assert len(sources) > 8
    for path in {path.split("[")[0] for source in sources for path in re.split(r"[ ,;]+", source)}:
        found = results
        for key in path.split("."):
            found = found[key]
        assert found, path


def test_a_second_bundle_is_attacked_for_itself(defense, digits):
    items = [*ITEMS[:2], Item("evade on against", "adaptive", ITEMS[3].attack, "against")]
    results = tp.evaluate(defense, digits.test[:40], protocol=items, batch_size=40, against=defense).results
    subjects = results.attacks[-1].subjects
    # The same defence twice: made for one, it works on both, noise apart.
    assert subjects["against"].accuracy == pytest.approx(subjects["defense"].accuracy, abs=0.1)
    assert set(results.worst_case) == {"defense", "bare", "denoiser", "reject", "against"}


@pytest.mark.parametrize(("reliable", "strict", "code"), [(False, False, 0), (False, True, 1), (True, True, 0)])
def test_strict_turns_an_unreliable_run_into_an_exit_code(killed, defense, monkeypatch, tmp_path, reliable, strict, code):
    _, results, _ = killed
    checks = [{**results["sanity"][0], "status": "passed" if reliable else "failed"}]
    given = EvaluationResults.model_validate({**results, "reliable": reliable, "sanity": checks})
    module = importlib.import_module("twoprong.cli.evaluate")
    monkeypatch.setattr(module, "run_evaluation", lambda *_, **__: tp.Evaluation(given))
    monkeypatch.chdir(tmp_path)
    defense.save("bundle")
    found = CliRunner().invoke(app, ["evaluate", "bundle", "--data", "digits", *(["--strict"] if strict else [])])
    assert found.exit_code == code, found.output


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"protocol": "easy"}, "quick, paper, strong"),
        ({"norm": "l2"}, "expected a budget beside norm"),
        ({"norm": "l7", "eps": 1.0}, "one of linf, l2"),
        ({"eps": -1.0}, "above 0"),
        ({"batch_size": 500}, "tests 1 to 120 images"),
        ({"batch_size": 100, "count": 50}, "at least one batch of 100"),
        ({"protocol": [ITEMS[0], ITEMS[0]]}, "two items are called"),
        ({"protocol": ITEMS[-1:]}, "nothing is a worst case"),
        ({"protocol": [replace(ITEMS[0], threat="whitebox")]}, "'whitebox', expected one of noise, transfer"),
        ({"protocol": [replace(ITEMS[0], target="surrogate")]}, "'surrogate', expected one of defense"),
    ],
)
def test_what_cannot_be_evaluated_is_said_before_any_work(defense, digits, settings, words):
    with pytest.raises(InputError, match=words):
        tp.evaluate(defense, digits.test, **settings)


def test_labels_that_the_classifier_does_not_have_are_refused(defense, digits):
    with pytest.raises(InputError, match="12"):
        tp.evaluate(defense, digits.test.images[:20], torch.full((20,), 12), batch_size=20)


def test_a_classifier_in_training_mode_is_evaluated_as_deployed_and_left_as_it_was(defense, digits):
    other = copy.deepcopy(defense)
    other.classifier.train()
    before = fingerprint(other)
    item = Item("noise", "noise", Noise(eps=0.2), "bare")
    found, expected = (
        tp.evaluate(one, digits.test[:80], protocol=[item], batch_size=40, count=40).results for one in (other, defense)
    )
    assert fingerprint(other) == before
    assert found.clean == expected.clean


def test_training_images_need_no_labels(defense, digits):
    results = tp.evaluate(
        defense, digits.test[:20], protocol=ITEMS[:1], batch_size=20, train=digits.train.images[:100], precision="bf16"
    ).results
    assert "magnet" in results.worst_case
    assert results.run.precision == "bf16"


def test_results_go_to_a_folder_of_their_own(defense, digits, tmp_path):
    (tmp_path / "file").touch()
    for folder, name in (("bundle", "manifest.json"), ("earlier", "results.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
    for place, words in (("file", "this is a file"), ("bundle", "holds a bundle"), ("earlier", "by --resume")):
        with pytest.raises(InputError, match=words):
            tp.evaluate(defense, digits.test[:20], protocol=ITEMS[:2], batch_size=20, out=tmp_path / place)
    with pytest.raises(InputError, match="norm: expected one of linf, l2"):
        tp.evaluate(defense, digits.test[:20], norm="l3")


class Numb(torch.nn.Module):
    """A classifier that gives no gradients."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return self.inner(images).detach()


def test_when_no_attack_that_counts_can_run_there_is_a_clear_result(defense, digits, tmp_path):
    items = [Item("transfer", "transfer", PGD(eps=EPS, steps=2), "surrogate")]
    surrogate = Numb(defense.classifier)
    settings = {"protocol": items, "batch_size": 20, "out": tmp_path, "surrogate": surrogate}
    found = tp.evaluate(defense, digits.test[:20], **settings)
    assert found.worst_case is None
    assert not found.reliable
    assert found.results.worst_case == {}
    assert [part.name for part in found.results.not_run] == ["transfer"]
    assert [check.name for check in found.results.sanity if check.status == "failed"] == ["worst case"]
    assert read_results(tmp_path / "results.json") == found.results
    text = (tmp_path / "results.md").read_text()
    assert text.startswith("# UNRELIABLE")
    assert "nothing can be said of what the defence withstands" in text
    show(found.results, tmp_path)


def test_a_run_resumed_under_another_commit_says_so(defense, digits, tmp_path, monkeypatch):
    settings = {"protocol": ITEMS[:1], "batch_size": 20, "out": tmp_path}
    monkeypatch.setattr(pieces_module, "origin", lambda: Origin(commit="before", twoprong="1", torch="2"))
    tp.evaluate(defense, digits.test[:20], **settings)
    monkeypatch.undo()
    made = tp.evaluate(defense, digits.test[:20], **settings, resume=True).results.made_with
    assert [one.commit for one in made.resumed_from] == ["before"]
    assert read_results(tmp_path / "results.json").made_with == made
    assert "parts resumed from before" in (tmp_path / "results.md").read_text()


def test_results_of_another_run_are_not_resumed(killed, place, own, photos):
    loaded, other = tp.load(place / "bundle", classifier=own), SETTINGS | {"seed": SETTINGS["seed"] + 1}
    with pytest.raises(InputError, match="other weights, images or settings"):
        tp.evaluate(loaded, photos.test, **other, train=photos.train, out=killed[0], resume=True)

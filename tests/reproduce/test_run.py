"""Every table of the paper at smoke scale, through the command line, all on one work directory."""

import json
import math
from importlib import resources

import pytest
import torch
from markupsafe import escape
from pydantic import ValidationError
from typer.testing import CliRunner

import twoprong as tp
from twoprong.attacks import ATTACKS
from twoprong.attacks.authors import Authors
from twoprong.attacks.bpda import BPDA
from twoprong.attacks.paper import Paper
from twoprong.cli import app
from twoprong.errors import ConfigError, DataError, InputError
from twoprong.models.train import accuracy
from twoprong.models.zoo import build
from twoprong.names import TABLES
from twoprong.presets import PRESETS
from twoprong.report.reproduction import show
from twoprong.reproduce import run as module
from twoprong.reproduce.artifacts import Artifacts
from twoprong.reproduce.options import ReproduceOptions
from twoprong.reproduce.run import reproduce
from twoprong.reproduce.tables import Experiment, Spec, load_experiment, spec_of
from twoprong.robust import METHODS
from twoprong.seeds import initialised
from twoprong.storage import fingerprint

pytestmark = pytest.mark.usefixtures("rough")


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder, and by name what was printed."""
    folder = tmp_path_factory.mktemp("reproduce")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    printed = {name: invoke(name, "--out", folder / name, "--work", folder / "work") for name in TABLES}
    torch.set_num_threads(threads)
    return folder, printed


def results_of(runs, name):
    return json.loads((runs[0] / name / "results.json").read_text())


def cells_of(results):
    return [cell for row in results["rows"] for cell in row["cells"]]


def measured(*arguments, **settings):
    """What a reproduction that is called from Python measured, as in its file."""
    return reproduce(*arguments, **settings).as_dict()


def without_seconds(results):
    rows = [
        {**row, "cells": [{key: value for key, value in cell.items() if key != "seconds"} for cell in row["cells"]]}
        for row in results["rows"]
    ]
    return {**results, "rows": rows, "run": None}


@pytest.mark.parametrize("name", TABLES)
def test_it_runs_and_prints_the_papers_numbers_beside_ours(runs, name):
    folder, printed = runs
    run, experiment, results = printed[name], load_experiment(name), results_of(runs, name)
    assert run.exit_code == 0, run.output
    assert "smoke: shows that it runs, not what it gives" in run.output
    units = [cell["unit"] for cell in results["rows"][0]["cells"]]
    page = (folder / name / "results.md").read_text()
    report = (folder / name / "report.html").read_text()
    assert all(escape(row.name) in report for row in (*experiment.rows, *experiment.quoted))
    assert ("<svg" in report) == ("%" in units)
    for cell in cells_of(results):
        given = cell["interval_batches"] or cell["interval"]
        interval = "–" if given is None else "{:.1f}–{:.1f}".format(*given)
        assert f"<td><b>{show(cell['ours'], cell['unit'])}</b></td><td>{interval}</td>" in report
        assert f"<td>{show(cell['paper'], cell['unit'])}" in report
    for row in (*experiment.rows, *experiment.quoted):
        for value, unit in zip(row.paper, units, strict=False):
            if not math.isnan(value):
                assert show(value, unit) in run.output
                assert show(value, unit) in page
    assert "smoke: shows that it runs, not what it gives" in page


@pytest.mark.parametrize("name", TABLES)
def test_results_are_complete(runs, name):
    results, experiment = results_of(runs, name), load_experiment(name)
    assert (results["format"], results["kind"], results["name"], results["scale"]) == (1, "reproduction", name, "smoke")
    assert results["warning"]
    assert results["made_with"].keys() >= {"twoprong", "torch", "python", "device"}
    assert results["run"]["command"].startswith("twoprong")
    assert results["config"]["denoiser"]["width"] == 0.1
    assert [row["name"] for row in results["rows"]] == [row.name for row in experiment.rows]
    for row, told in zip(experiment.rows, results["rows"], strict=True):
        assert [cell["column"] for cell in told["cells"]] == [column.name for column in experiment.columns]
        for number, cell in enumerate(told["cells"]):
            assert cell["paper"] is None or cell["paper"] == row.paper[number]
            assert cell["spread"] is None or cell["spread"] == row.spread[number]
            assert isinstance(cell["ours"], float)
            assert cell["seconds"] >= 0
            assert cell["images"] > 0
            assert cell["classifier"] == "cnn"
            assert (cell["bundle"] is None) == row.bare
            if cell["spec"].get("measure") == "average":
                clean, attacked = (other["ours"] for other in told["cells"][:2])
                assert (cell["ours"], cell["interval"]) == (pytest.approx((clean + attacked) / 2), None)
            elif cell["unit"] == "%":
                low, high = cell["interval"]
                assert 0 <= low < high <= 100
                assert low - 1 < cell["ours"] < high + 1
                assert cell["batches"] > 0
            else:
                assert cell["ours"] > 0


def test_what_is_run_is_what_the_table_says(runs):
    pronged = results_of(runs, "two-pronged")["rows"]
    assert [cell["flagged"] for cell in pronged[0]["cells"]] == [1, 1, 1]  # denoiser only: always through the denoiser
    sizes = [cell["batch_size"] for cell in results_of(runs, "batch-size")["rows"][0]["cells"]]
    assert sizes == list(range(10, 111, 10))
    at_one = results_of(runs, "threshold")["rows"][5]["cells"]
    assert at_one[0]["flagged"] == 0  # a statistic of clean batches is nowhere near 1
    attack = at_one[1]["attack"]  # as it was run, not as at full scale
    assert (attack["name"], attack["norm"], attack["steps"]) == ("paper", "linf", 2)
    assert attack["eps"] == pytest.approx(6 * 8 / 255)
    mixed = results_of(runs, "mixed")["rows"][0]["cells"]
    assert (mixed[0]["column"], mixed[0]["flagged"], mixed[-1]["flagged"]) == ("0 %", 0, 1)  # nothing adversarial in it
    alone, defended = results_of(runs, "with-at")["rows"][:2]
    assert {cell["flagged"] for cell in alone["cells"]} == {None}  # nothing there flags
    assert defended["cells"][0]["bundle"] == "bundles/cnn-at"


def test_the_whole_share_is_the_attack_itself(runs):
    mixed = results_of(runs, "mixed")["rows"][0]["cells"][-1]
    robust = results_of(runs, "table1-linf")["rows"][0]["cells"][1]
    assert mixed["ours"] == robust["ours"]


def test_the_same_thing_is_not_made_twice(runs):
    work = runs[0] / "work"
    # Natural, surrogate, four adversarially trained classifiers, and with the authors' schedule the natural one and their
    # extractor; fits: the standard one, the same once more for its seconds, two other alphas, one without noise, three with
    # the authors' noise, one around each adversarially trained one, one the authors' way.
    assert len(list((work / "classifiers").iterdir())) == 8
    assert len(list((work / "bundles").iterdir())) == 13


def test_bundles_serve(runs, digits):
    folder, _ = runs
    for name in ("alpha", "threshold", "two-pronged"):
        for bundle in {cell["bundle"] for cell in cells_of(results_of(runs, name))}:
            assert len(tp.load(folder / name / bundle)(digits.test.images[:50]).labels) == 50
    only = tp.load(folder / "two-pronged" / "bundles" / "cnn-threshold=-10")
    assert only(digits.test.images[:20]).adversarial
    assert tp.load(folder / "threshold" / "bundles" / "cnn-threshold=0.5").threshold(100) == 0.5
    noisy = folder / "noise" / "bundles"
    assert tp.load(noisy / "cnn-denoiser.sigma=0").config.denoiser.sigma == 0
    # At smoke scale the other classifier whose features are seen is the protected one: the same statistic by another way.
    own = tp.load(noisy / "cnn-denoiser.noise=clamped")
    other = tp.load(noisy / "cnn-denoiser.noise=clamped-features-of-cnn")
    seen = [one(digits.test.images[:50]).statistic for one in (own, other)]
    assert seen[0] == pytest.approx(seen[1], rel=1e-4)
    theirs = tp.load(noisy / "cnn-denoiser.noise=clamped-denoiser.estimator=v-features-of-cnn")
    assert theirs.config.denoiser.estimator == "v"
    assert theirs(digits.test.images[:50]).statistic == pytest.approx(seen[0], rel=1e-4)  # its denoiser is another
    assert fingerprint(theirs.flagged.denoiser) != fingerprint(other.flagged.denoiser)


def count_calls(monkeypatch, owner, name):
    calls, real = [], getattr(owner, name)

    def counted(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_a_resumed_run_measures_only_what_is_missing(runs, monkeypatch):
    folder, _ = runs
    before = results_of(runs, "mixed")
    pieces = sorted((folder / "mixed" / "work" / "cells").glob("*.safetensors"))
    assert len(pieces) == 22  # two rows of eleven shares
    pieces[-1].unlink()
    measured = count_calls(monkeypatch, module, "_measure")
    crafted = count_calls(monkeypatch, Artifacts, "_craft")
    run = invoke("mixed", "--out", folder / "mixed", "--work", folder / "work", "--resume", "--json")
    assert run.exit_code == 0, run.output
    assert len(measured) == 1
    assert crafted == []
    assert without_seconds(results_of(runs, "mixed")) == without_seconds(before)


class KilledError(Exception):
    pass


def test_a_killed_run_goes_on_to_the_same_numbers(runs, monkeypatch, tmp_path, digits):
    work = runs[0] / "work"
    crafted = count_calls(monkeypatch, Artifacts, "_craft")

    def run(out, resume=False, progress=lambda *report: None):
        return measured(
            "two-pronged", "smoke", digits, out, ReproduceOptions(work=work, images=200, resume=resume, progress=progress)
        )

    def kill(stage, done, total, note=""):
        if stage == "attack" and note == "paper" and done == 1:
            raise KilledError

    with pytest.raises(KilledError):
        run(tmp_path / "killed", progress=kill)
    assert len(crafted) == 1
    with pytest.raises(InputError, match="--resume"):
        run(tmp_path / "killed")
    resumed = run(tmp_path / "killed", resume=True)
    assert len(crafted) == 8  # four attacked cells of two batches of 100; the first batch was there
    assert without_seconds(resumed) == without_seconds(run(tmp_path / "undisturbed"))
    assert len(crafted) == 8
    with pytest.raises(InputError, match="other weights, images or settings"):
        reproduce("two-pronged", "smoke", digits, tmp_path / "killed", ReproduceOptions(work=work, resume=True, seed=1))


def test_shares_are_of_adversarial_images_and_nested(runs, monkeypatch, digits):
    folder, _ = runs
    scale = load_experiment("mixed").smoke
    shop = Artifacts(folder / "work", digits, scale, 0)
    judged = count_calls(monkeypatch, module, "_judge")
    seen = []
    for share in (0.0, 0.1, 0.5, None):
        spec = Spec(classifier="cnn", measure="attacked", settings={"steps": 200, "draws": 20}, share=share)
        module._attacked(shop, spec, shop.defense(spec))
        images = judged[-1][1]
        seen.append((images != digits.test.images[:100]).flatten(1).any(1))
    assert [int(changed.sum()) for changed in seen[:3]] == [0, 10, 50]
    assert seen[3].sum() > 90
    assert (seen[2] | ~seen[1]).all()  # what is adversarial at 10 % is so at 50 %


def test_a_surrogate_is_another_classifier(runs, digits):
    shop = Artifacts(runs[0] / "work", digits, load_experiment("transfer").smoke, 0)
    spec = Spec(classifier="cnn", surrogate="cnn")
    assert fingerprint(shop.surrogate(spec)) != fingerprint(shop.measured(Spec(classifier="cnn", bare=True)))
    reads = 100 * accuracy(shop.surrogate(spec), digits.test)
    results = results_of(runs, "transfer")
    assert {cell["surrogate_accuracy"] for cell in cells_of(results)} == {reads}
    assert f"| WRN-70-16 (reads {reads:.1f} %) |" in (runs[0] / "transfer" / "results.md").read_text()
    assert {cell["surrogate_accuracy"] for cell in cells_of(results_of(runs, "alpha"))} == {None}


def test_a_given_classifier_is_the_one_that_is_protected(tmp_path, digits):
    with initialised(0, "given"):
        given = build("cnn", 10, 1).eval().requires_grad_(False)
    results = measured("bpda", "smoke", digits, tmp_path, ReproduceOptions(trained=lambda name: given))
    bundle = cells_of(results)[0]["bundle"]
    assert fingerprint(tp.load(tmp_path / bundle).classifier) == fingerprint(given)


def test_batches_that_are_attacked_are_whole(tmp_path, digits, classifier):
    shop = Artifacts(tmp_path, digits, load_experiment("bpda").smoke, 0, trained=lambda name: classifier)
    spec = Spec(classifier="cnn", bare=True, measure="attacked", attack="noise", batch_size=40)
    made = shop.attacked(spec, shop.measured(spec), digits.test[:100])
    assert [len(batch.images) for batch in made] == [40, 40]


def test_a_given_surrogate_is_the_one_that_attacks_are_made_on(tmp_path, digits):
    with initialised(0, "given"):
        protected = build("cnn", 10, 1).eval().requires_grad_(False)
    with initialised(0, "theirs"):
        theirs = build("cnn", 10, 1).eval().requires_grad_(False)
    given = {"trained": lambda name: protected, "only": ["linf 8/255"], "columns": ["rn-18"], "images": 10}
    given["work"] = tmp_path / "work"
    results = measured(
        "transfer", "smoke", digits, tmp_path / "theirs", ReproduceOptions(surrogates={"cnn": theirs}, **given)
    )
    assert [cell["surrogate_accuracy"] for cell in cells_of(results)] == [100 * accuracy(theirs, digits.test)]
    for name, surrogate, words in (("cnn", protected, "other weights than"), ("wrn", theirs, "made on here, of cnn")):
        with pytest.raises(InputError, match=words):
            reproduce("transfer", "smoke", digits, tmp_path / name, ReproduceOptions(surrogates={name: surrogate}, **given))
    assert "expected NAME=FILE" in str(invoke("transfer", "--surrogate-weights", "cnn").exception)


def test_a_defence_that_was_fitted_for_its_seconds_serves_the_others(tmp_path, digits):
    given = {"work": tmp_path / "work", "images": 10}
    reproduce("compute", "smoke", digits, tmp_path / "compute", ReproduceOptions(only=["RN-18"], **given))
    (fitted,) = (tmp_path / "work" / "bundles").iterdir()
    reproduce("bpda", "smoke", digits, tmp_path / "bpda", ReproduceOptions(**given))
    assert list((tmp_path / "work" / "bundles").iterdir()) == [fitted]


def test_only_the_rows_asked_for_are_run_and_the_others_quoted(runs, tmp_path, digits):
    chosen = {"only": ["wrn-70"], "images": 10, "work": runs[0] / "work"}
    results = measured("table1-linf", "smoke", digits, tmp_path, ReproduceOptions(**chosen))
    assert [row["name"] for row in results["rows"]] == ["DAD, WRN-70-16"]
    left, *_ = results["quoted"]
    assert left == {"name": "DAD, WRN-28-10", "paper": [94.16, 67.53], "spread": [0.08, 1.07]}
    for page in ("results.md", "report.html"):
        assert "67.53 ± 1.07" in (tmp_path / page).read_text()
    with pytest.raises(InputError, match="of DAD, WRN-28-10; DAD, WRN-70-16"):
        reproduce("table1-linf", "smoke", digits, tmp_path / "other", ReproduceOptions(only=["wrn-70", "wrn-34"]))


def test_only_the_columns_asked_for_are_run_and_keep_their_own_numbers(runs, tmp_path, digits):
    chosen = {"only": ["denoiser only"], "columns": ["l2", "CLEAN"], "images": 10, "work": runs[0] / "work"}
    results = measured("two-pronged", "smoke", digits, tmp_path, ReproduceOptions(**chosen))
    assert results["columns"] == ["Clean", "PGD+EOT l2"]
    assert [(cell["paper"], cell["spread"]) for cell in cells_of(results)] == [(85.07, 0.16), (85.01, 0.50)]
    assert results["quoted"] == [{"name": "denoiser + MMD-OPT", "paper": [94.16, 84.37], "spread": [0.08, 0.81]}]
    with pytest.raises(InputError, match=r"--column 'l1': expected a name or a part of one, of Clean; PGD\+EOT linf;"):
        reproduce("two-pronged", "smoke", digits, tmp_path / "other", ReproduceOptions(columns=["l1"]))


def test_a_whole_name_is_meant_before_a_part_of_others():
    sizes = load_experiment("batch-size")
    assert [column.name for column in sizes.narrowed(columns=["10"]).columns] == ["10"]
    assert [column.name for column in sizes.narrowed(columns=["11", "9"]).columns] == ["90", "110"]
    *_, left = load_experiment("threshold").narrowed(rows=["0.10"]).quoted
    assert (left.name, all(map(math.isnan, left.paper))) == ("calibrated", True)  # the paper prints none, and it is not lost


def test_settings_reach_every_fit_but_not_over_those_of_a_row(tmp_path, digits):
    asked = ["denoiser.noise=clamped", "denoiser.alpha=0.5"]
    results = measured("alpha", "smoke", digits, tmp_path, ReproduceOptions(only=["0.05"], images=10, assignments=asked))
    assert results["config"]["denoiser"]["noise"] == "clamped"
    fitted = tp.load(tmp_path / cells_of(results)[0]["bundle"]).config.denoiser
    assert (fitted.noise, fitted.alpha) == ("clamped", 0.05)
    with pytest.raises(ConfigError, match=r"denoiser\.noise"):
        reproduce("alpha", "smoke", digits, tmp_path / "other", ReproduceOptions(assignments=["denoiser.noise=loud"]))
    with pytest.raises(InputError, match="use --seed"):
        reproduce("alpha", "smoke", digits, tmp_path / "other", ReproduceOptions(assignments=["seed=5"]))
    assert not (tmp_path / "other").exists()


def test_an_unknown_name_is_told_the_nearest():
    run = invoke("table-linf")
    assert isinstance(run.exception, InputError)
    assert "did you mean table1-linf?" in str(run.exception)
    assert str(invoke("zzz").exception).endswith("got 'zzz'")


def test_a_mistake_leaves_nothing_behind(tmp_path):
    run = invoke("threshold", "--only", "0.11", "--out", tmp_path / "out")
    assert isinstance(run.exception, InputError)
    assert not (tmp_path / "out").exists()


def test_what_full_scale_needs_is_said_before_the_work(tmp_path):
    for name, options, kind, words in (
        ("imagenet", (), InputError, "--data FOLDER"),
        ("imagenet", ("--data", tmp_path), InputError, "no --weights"),
        ("alpha", (), DataError, "--data-root"),
        ("alpha", ("--data", tmp_path), InputError, "leave it out"),
    ):
        run = invoke(name, "--scale", "full", "--out", tmp_path / "out", *options)
        assert isinstance(run.exception, kind)
        assert words in str(run.exception)
    assert not (tmp_path / "out").exists()


def test_files_and_names_are_the_same_list():
    files = {entry.name for entry in resources.files("twoprong.reproduce").joinpath("paper").iterdir()}
    assert files == {f"{name}.toml" for name in (*TABLES, "scales")}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("scale_name", ["smoke", "full"])
def test_every_cell_can_be_asked_for(name, scale_name):
    experiment = load_experiment(name)
    scale = experiment.scale(scale_name)
    for row in experiment.rows:
        for column in experiment.columns:
            spec = spec_of(row, column, scale)
            config, attack = scale.config(spec, 3), scale.attack(spec)
            assert config.seed == 3
            assert spec.robust is None or spec.robust in METHODS
            assert spec.batch_size <= config.detector.max_batch_size
            if scale_name == "full" and spec.measure == "attacked":
                assert (attack.norm, attack.eps) == (spec.norm, spec.eps)
                asked = ATTACKS[spec.attack](**spec.settings)
                assert all(getattr(attack, key) == getattr(asked, key) for key in spec.settings)


def test_full_scale_is_the_papers():
    linf, imagenet = (load_experiment(name) for name in ("table1-linf", "imagenet"))
    attack = linf.full.attack(spec_of(linf.rows[0], linf.columns[1], linf.full))
    assert attack == Paper(eps=8 / 255, norm="linf", steps=200, draws=20, threshold=0.05)  # Algorithm 3's own
    by_row = [linf.full.config(spec_of(row, linf.columns[1], linf.full), 0) for row in linf.rows]
    assert by_row == [PRESETS[name] for name in ("paper", "paper", "cifar10", "authors", "authors", "authors")]
    attack = linf.full.attack(spec_of(linf.rows[-1], linf.columns[1], linf.full))
    assert attack == Authors(eps=8 / 255, norm="linf", steps=200, draws=20)
    attack = imagenet.full.attack(spec_of(imagenet.rows[0], imagenet.columns[1], imagenet.full))
    assert attack == Paper(eps=4 / 255, norm="linf", steps=20, draws=20, threshold=0.05)
    bpda = load_experiment("bpda")
    attack = bpda.full.attack(spec_of(bpda.rows[0], bpda.columns[1], bpda.full))
    assert attack == BPDA(eps=8 / 255, norm="linf", steps=50, step=2 / 255, draws=15, average="logits")
    config = imagenet.full.config(spec_of(imagenet.rows[0], imagenet.columns[1], imagenet.full), 0)
    assert config == PRESETS["paper-imagenet"]


def test_another_classifier_wins_over_the_rows():
    experiment = load_experiment("table1-linf")
    names = [spec_of(row, experiment.columns[0], experiment.full).classifier for row in experiment.rows]
    assert names == ["wrn-28-10", "wrn-70-16", *["wrn-28-10"] * 3, "wrn-28-10-authors"]
    assert {spec_of(row, experiment.columns[0], experiment.full, "resnet18").classifier for row in experiment.rows} == {
        "resnet18"
    }


def test_numbers_that_do_not_fit_the_columns_are_refused():
    whole = load_experiment("alpha").model_dump(exclude_unset=True)
    whole["rows"][0]["paper"] = (1.0,)
    with pytest.raises(ValidationError, match="expected 2 numbers"):
        Experiment.model_validate(whole)


def test_a_setting_that_the_attack_does_not_have_is_refused():
    with pytest.raises(InputError, match="steeps"):
        load_experiment("alpha").smoke.attack(Spec(settings={"steeps": 3}))


def test_several_seeds_give_mean_and_standard_deviation(tmp_path):
    """A preset wins over the scale's; its rows keep their own."""
    arguments = ("alpha", "--only", "0.01", "--preset", "paper", "--seeds", 2, "--work", tmp_path / "work")
    run = invoke(*arguments, "--out", tmp_path / "both")
    assert run.exit_code == 0, run.output
    results = json.loads((tmp_path / "both/results.json").read_text())
    assert (results["run"]["seeds"], results["run"]["scale"]["preset"]) == (2, "paper")
    assert results["config"]["detector"]["statistic"] == "paired"
    for cell in results["rows"][0]["cells"]:
        a, b = cell["runs"]
        assert cell["ours"] == pytest.approx((a + b) / 2)
        assert cell["deviation"] == pytest.approx(abs(a - b) / 2**0.5)
        assert (cell["interval"], cell["interval_batches"]) == (None, None)
        assert f"{show(cell['ours'], '%', cell['deviation'])}, 2 runs" in (tmp_path / "both/results.md").read_text()
        assert (tmp_path / "both" / cell["bundle"] / "manifest.json").exists()
    alone = json.loads((tmp_path / "both/seed-1/results.json").read_text())
    assert alone["run"]["seed"] == 1
    assert [cell["ours"] for cell in cells_of(alone)] == [cell["runs"][1] for cell in results["rows"][0]["cells"]]
    assert "holds an earlier run" in str(invoke(*arguments, "--out", tmp_path / "both").exception)
    weights = tmp_path / "both" / results["rows"][0]["cells"][0]["bundle"] / "classifier.safetensors"
    given = invoke("alpha", "--seeds", 2, "--weights", weights, "--out", tmp_path / "given")
    assert "--seeds with --weights: expected --held-out" in str(given.exception)

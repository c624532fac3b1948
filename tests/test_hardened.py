"""The hardened mode from fit to evaluation: the same Defense with other routes."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import twoprong as tp
from twoprong.card import model_card
from twoprong.cli import app
from twoprong.cli.arguments.fit import FitArguments
from twoprong.cli.finished import is_finished
from twoprong.cli.fit import fit as fit_command
from twoprong.data.splits import split
from twoprong.errors import BundleError, ConfigError, InputError
from twoprong.evaluation.accelerated import Accelerated
from twoprong.manifest import check
from twoprong.models.train import accuracy
from twoprong.parts import describe
from twoprong.robust.run import save_weights
from twoprong.seeds import generator
from twoprong.whitebox import OneRoute

pytestmark = pytest.mark.usefixtures("rough")

SETTINGS = (
    "attack.eps=0.2", "attack.step=0.05", "attack.steps=4", "kernel.epochs=20", "detector.permutations=50",
    "detector.max_batch_size=20", "classifier.epochs=8", "robust.epochs=5", "robust.ema=0.95", "robust.early_steps=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the commands ran that fit a hardened defence to the digits and evaluate it, and what they printed."""
    folder = tmp_path_factory.mktemp("hardened")
    fit = ["fit", "--data", "digits", "--classifier", "cnn", "--mode", "hardened", "--balance", "0.5", "--out", "bundle"]
    evaluate = ["evaluate", "bundle", "--data", "digits", "--protocol", "quick", "--images", "10", "--batch-size", "10"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("twoprong.evaluation.protocols.HIDING", {"steps": 10, "penalties": (1.0,)})  # it takes longest
        patch.setattr("twoprong.evaluation.baselines.magnet.PASSES", 2)
        runs = [
            CliRunner().invoke(app, [*command, "--json"])
            for command in ([*fit, *(f"--set={one}" for one in SETTINGS)], [*evaluate, "--out", "evaluation"])
        ]
    assert [run.exit_code for run in runs] == [0, 0], [run.output for run in runs]
    return folder, *(json.loads(run.stdout) for run in runs)


@pytest.fixture(scope="module")
def hardened(place):
    return tp.load(place[0] / "bundle")


@pytest.fixture(scope="module")
def config(hardened):
    return hardened.config


def test_the_commands_fit_and_evaluate_it(place, hardened):
    folder, fitted, results = place
    assert (hardened.config.mode, hardened.config.balance, fitted["flagged"]) == ("hardened", 0.5, "robust")
    assert fitted["attacked_defended"] > fitted["attacked_bare"]
    # What each layer adds: every route is attacked by who knows it, and scored under every attack.
    assert {"gate", "gate on the gate", "gate on the robust"} <= {attack["name"] for attack in results["attacks"]}
    assert {"defense", "bare", "robust", "gate", "reject"} <= set(results["worst_case"])
    assert not [check for check in results["sanity"] if check["status"] == "failed"]
    assert not any("denoised" in picture["images"] for picture in results["pictures"])
    page = (folder / "evaluation" / "report.html").read_text()
    assert "gate on the robust" in page
    assert json.loads((folder / "evaluation" / "results.json").read_text()) == results


def test_both_routes_are_robust_and_the_classifier_is_not(hardened, digits):
    part = digits.test[:60]
    attack = tp.attacks.ATTACKS["gate"](eps=0.15, steps=20, targets=2)
    left = {
        role: attack(OneRoute(hardened, role), part.images, part.labels, generator(0, role)).accuracy
        for role in ("passing", "flagged")
    }
    bare = attack(hardened.classifier, part.images, part.labels, generator(0, "bare")).accuracy
    assert min(left.values()) > bare + 0.2
    assert hardened.flagged.robust is hardened.passing.robust


def test_balance_moves_the_threshold_and_the_clean_accuracy(hardened, digits, config):
    held_out = split(digits.train, config.splits, config.seed).calibration
    classifier, robust, fitted = hardened.classifier, hardened.flagged.robust, [hardened]
    for balance in (1.0, 0.0):
        chosen = config.model_copy(update={"balance": balance})
        fitted.append(tp.fit(classifier, digits.train, config=chosen, robust=robust, measure=False))
        assert fitted[-1].classifier is classifier
    middle, safe, accurate = (
        (one.passing.tau, accuracy(lambda x, one=one: one.passing.logits(x)[0], held_out)) for one in fitted
    )
    assert safe == (0.0, accuracy(robust, held_out))
    assert safe[0] < middle[0] < accurate[0]
    assert safe[1] < middle[1] <= accurate[1]
    assert accurate[1] >= accuracy(classifier, held_out)


def test_a_bundle_keeps_it(hardened, digits, tmp_path):
    hardened.save(tmp_path / "bundle")
    loaded, images = tp.load(tmp_path / "bundle"), digits.test.images[:50]
    assert sorted(file.name for file in (tmp_path / "bundle").glob("*.safetensors")) == [
        "classifier.safetensors",
        "detector.safetensors",
        "robust.safetensors",
    ]
    assert loaded.passing.tau == hardened.passing.tau
    for role in ("passing", "flagged"):
        assert torch.equal(loaded.logits(images, role), hardened.logits(images, role))
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "Robust network: cnn" in card
    assert "knows everything (200 images), robust network alone, gate: " in card


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: parts["passing"]["settings"].update(tau=-0.1), "tau"),
        (lambda parts: parts["passing"]["settings"].clear(), "tau"),
        (lambda parts: parts["flagged"]["networks"].clear(), "robust network"),
    ],
    ids=["negative", "missing", "no network"],
)
def test_a_manifest_that_makes_no_gate_is_refused(hardened, change, message):
    manifest = describe(hardened.parts) | {"digest": "0" * 64, "files": {}}
    check(manifest, "manifest.json")
    change(manifest["parts"])
    with pytest.raises(BundleError, match=message):
        check(manifest, "manifest.json")


def test_the_fast_copy_for_attackers_is_the_same_defence(hardened, digits):
    copy, batch = Accelerated(hardened, None), digits.test[:40]
    labels = [one.logits(batch.images, "passing")[0].argmax(1) for one in (hardened, copy)]
    assert (labels[0] == labels[1]).double().mean() > 0.9
    past = [one.hurdles(batch.images, batch.labels)[0].past for one in (hardened, copy)]
    torch.testing.assert_close(*past, atol=0.05, rtol=0)


def test_a_compiled_copy_can_be_attacked(hardened, digits):
    """Compiled code gives up what a second backward pass would need."""

    def compiler(step, **options):
        return torch.compile(step, backend="aot_eager", **options)

    part = digits.test[:10]
    attack = tp.attacks.ATTACKS["gate"](eps=0.2, steps=3, targets=1)
    found = attack(Accelerated(hardened, compiler), part.images, part.labels, generator(0, "compiled"))
    assert found.success.any()


def test_a_classifier_that_is_not_ours_needs_the_name_of_an_architecture(classifier, digits, config):
    with pytest.raises(InputError, match=r"robust\.model"):
        tp.fit(nn.Sequential(classifier, nn.Identity()), digits.train, config=config, held_out="none")


def test_a_balance_beyond_its_range_is_refused():
    with pytest.raises(ConfigError, match="balance"):
        tp.fit(None, None, config={"mode": "hardened", "balance": 1.5})


def test_a_finished_fit_knows_its_robust_network(place, hardened, digits, config, tmp_path):
    given = FitArguments(data="digits", bundle=place[0] / "bundle", classifier="cnn", resume=True)
    assert is_finished(given, config, digits, None, "fp32")
    save_weights(tmp_path / "same.safetensors", hardened.flagged.robust, {})
    save_weights(tmp_path / "other.safetensors", hardened.classifier, {})
    answers = [
        is_finished(replace(given, robust_weights=tmp_path / f"{name}.safetensors"), config, digits, None, "fp32")
        for name in ("same", "other")
    ]
    assert answers == [True, False]


def test_weights_of_a_robust_network_belong_to_the_hardened_mode(tmp_path):
    given = FitArguments(data="digits", bundle=tmp_path / "b", classifier="cnn", robust_weights=tmp_path / "r", balance=0.3)
    with pytest.raises(InputError, match="--mode hardened"):
        fit_command(given)
    assert not list(tmp_path.iterdir())


def test_a_card_of_the_papers_mode_names_its_noise(defense):
    card = model_card(describe(defense.parts))
    assert "Trained on the minimum-margin attack, linf eps 0.2; symmetric noise, sigma 0.1" in card
    assert "the published one" in card


@pytest.mark.parametrize("rescue", ["suspects", "batch"])
@pytest.mark.parametrize("flagged", [False, True])
def test_each_network_is_shown_every_image_once_whatever_the_verdict(hardened, digits, rescue, flagged):
    """Also a flagged one's: neither is asked again for some of the images, and the answers are those of the routes."""
    config = hardened.config.model_copy(update={"rescue": rescue})
    defense, images, shown = tp.Defense(**vars(replace(hardened.parts, config=config))), digits.test.images[:20], []
    if flagged:
        images = torch.cat([1 - images[:12], images[12:]])
    heads = [network.head for network in (defense.passing.classifier, defense.passing.robust)]
    hooks = [head.register_forward_pre_hook(lambda head, given: shown.append((head, len(given[0])))) for head in heads]
    decision = defense(images)
    for hook in hooks:
        hook.remove()
    assert decision.adversarial is flagged
    assert shown == [(head, 20) for head in heads]
    rescued = decision.suspects | (torch.tensor(flagged) & torch.tensor(rescue == "batch"))
    expected = torch.where(rescued[:, None], defense.flagged.logits(images)[0], defense.passing.logits(images)[0])
    torch.testing.assert_close(decision.logits, expected)

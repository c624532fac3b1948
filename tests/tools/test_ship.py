import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import twoprong as tp
from twoprong.config import parse_config
from twoprong.data.cifar10 import CLASSES
from twoprong.data.tensors import ImageData, Labelled
from twoprong.errors import InputError
from twoprong.models.compact import compact
from twoprong.models.zoo import build
from twoprong.seeds import generator, initialised
from twoprong.storage import load_tensors

pytestmark = pytest.mark.usefixtures("rough")

ROOT = Path(__file__).parents[2]
tool = runpy.run_path(str(ROOT / "tools" / "ship.py"))
ship, state = tool["ship"], tool["state"]
recalibrate = runpy.run_path(str(ROOT / "tools" / "recalibrate.py"))["recalibrate"]
rates = runpy.run_path(str(ROOT / "tools" / "clean_rates.py"))["rates"]
TINY = {
    "attack": {"steps": 1, "targets": 1},
    "kernel": {"epochs": 1},
    "detector": {"max_batch_size": 20, "permutations": 10},
    "denoiser": {"width": 0.05, "epochs": 1, "batch_size": 100},
}


@pytest.fixture(scope="module")
def data():
    draw = generator(0, "ship")
    images = torch.randint(256, (110, 3, 32, 32), generator=draw).float() / 255
    labels = torch.randint(10, (110,), generator=draw)
    return ImageData("cifar10", Labelled(images[:100], labels[:100]), Labelled(images[100:], labels[100:]), CLASSES)


@pytest.fixture(scope="module")
def rounded(data, tmp_path_factory):
    with initialised(0, "ship"):
        model = build("cnn", 10, 3).eval().requires_grad_(False)
    for tensor in model.state_dict().values():
        tensor.copy_(tensor.half() if tensor.is_floating_point() else tensor)
    path = tmp_path_factory.mktemp("ship") / "bundle"
    tp.fit(model, data.train, config=parse_config(TINY), force=True).save(path)
    return path


def test_what_is_shipped_is_small_and_judges_as_before(rounded, data, tmp_path):
    ship(rounded, data, tmp_path)
    before, after = tp.load(rounded), tp.load(tmp_path / "cifar10-small")
    assert before(data.test.images).statistic == after(data.test.images).statistic
    assert torch.equal(before.logits(data.test.images, "passing"), after.logits(data.test.images, "passing"))
    rounded_here = compact(before.flagged.denoiser).state_dict()
    for name, tensor in after.flagged.denoiser.state_dict().items():
        assert torch.equal(tensor, rounded_here[name]), name
    images = load_tensors(tmp_path / "cifar10-small-test.safetensors")[0]
    assert torch.equal(images["images"], data.test.images)
    assert torch.equal(images["labels"], data.test.labels)
    assert (tmp_path / "cifar10-small-test.safetensors").stat().st_size < 1.1 * data.test.images.numel()


def test_a_hardened_bundle_is_shipped_beside_it_with_its_networks_in_eight_bits(data, tmp_path):
    with initialised(1, "ship"):
        accurate, robust = (compact(build("cnn", 10, 3).eval().requires_grad_(False)) for _ in range(2))
    config = parse_config({**TINY, "mode": "hardened"})
    tp.fit(accurate, data.train, config=config, robust=robust, force=True).save(tmp_path / "bundle")
    ship(tmp_path / "bundle", data, tmp_path / "home", name="cifar10-small-hardened")
    names = {path.name for path in (tmp_path / "home").iterdir() if not path.name.startswith(".")}
    assert names == {"cifar10-small-hardened", "cifar10-small-test.safetensors"}
    before, after = tp.load(tmp_path / "bundle"), tp.load(tmp_path / "home/cifar10-small-hardened")
    for role in ("passing", "flagged"):
        assert torch.equal(before.logits(data.test.images, role), after.logits(data.test.images, role))
    stored = load_file(tmp_path / "home/cifar10-small-hardened/robust.safetensors")
    assert {value.dtype for value in stored.values() if value.ndim > 1} == {torch.int8}


def test_too_much_is_refused_and_nothing_is_written(rounded, data, tmp_path):
    with pytest.raises(InputError, match="expected at most 1,000 bytes"):
        ship(rounded, data, tmp_path, most=1000)
    assert list(tmp_path.iterdir()) == []


def test_a_classifier_that_would_lose_bits_is_refused(rounded, data, tmp_path):
    defense = tp.load(rounded)
    with torch.no_grad():
        next(defense.classifier.parameters())[0] = 1 / 3
    defense.save(tmp_path / "bundle")
    with pytest.raises(InputError, match="1 tensors lose bits"):
        ship(tmp_path / "bundle", data, tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("known", ["reference", "calibration"])
def test_test_images_that_the_bundle_knows_are_refused(rounded, data, tmp_path, known):
    known_images = {
        "reference": tp.load(rounded).reference_images(),
        "calibration": data.train.images,
    }[known]
    stolen = Labelled(torch.cat([data.test.images, known_images]), torch.zeros(10 + len(known_images), dtype=torch.long))
    with pytest.raises(InputError, match="fit on others"):
        ship(rounded, ImageData("cifar10", data.train, stolen, CLASSES), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_card_says_what_was_published_and_nothing_else_changes(rounded, data, tmp_path):
    ship(rounded, data, tmp_path)
    bundle, results = tmp_path / "cifar10-small", tmp_path / "results"
    before = {file.name: file.read_bytes() for file in bundle.glob("*.safetensors")}
    with pytest.raises(InputError, match="publish them first"):
        state(results, tmp_path)
    shutil.copytree(ROOT / "results" / "digits-quick", results / "cifar10-small-quick")
    file = results / "cifar10-small-quick" / "results.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    with pytest.raises(InputError, match="of this bundle there, got none"):  # it is older than the bundle
        state(results, tmp_path)
    found["sanity"][-1]["status"] = "not converged"
    found["run"]["started"] = tp.load(bundle).about["fitted"]
    file.write_text(json.dumps(found), encoding="utf-8")
    state(results, tmp_path)
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert found["run"]["command"] in card
    assert f"{found['worst_case']['defense']['per_batch']:.1%}" in card
    assert "an upper bound: not every attack had converged" in card
    assert "sanity checks failed" not in card
    assert {file.name: file.read_bytes() for file in bundle.glob("*.safetensors")} == before


def test_calibrating_anew_changes_nothing_that_the_fit_did(rounded, data):
    """The same images and seed give the same thresholds; other images are refused."""
    before, again = tp.load(rounded), recalibrate(tp.load(rounded), data)
    for name, tensor in again.state_dict().items():
        then, by_size = before.state_dict()[name], name in ("detector.upper", "detector.central", "detector.null")
        if by_size:  # the first row is of single images
            assert torch.allclose(tensor[1:], then[1:], atol=1e-6), name
        # Their score (log-odds, some tens) is learned from examples that are crafted in other chunks here: other rounding.
        rtol = 1e-3 if by_size or ".blame." in name else 1e-5
        assert torch.allclose(tensor, then, rtol=rtol, atol=1e-3 if by_size else 1e-6), name
    other = ImageData(data.name, data.train[torch.arange(99, -1, -1)], data.test, data.classes)
    with pytest.raises(InputError, match="other images than the bundle was fitted on"):
        recalibrate(before, other)


def test_a_row_of_clean_rates_for_every_size(rounded, data):
    lines = rates(tp.load(rounded), data.test.images, sizes=(2, 5), least=20)
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["2", "5"]
    assert all(line.count("%") == 3 for line in lines[2:])

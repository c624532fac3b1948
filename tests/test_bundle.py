import copy
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import twoprong as tp
from twoprong.bundle import BLANK, _digest, read_manifest
from twoprong.errors import BundleError
from twoprong.models.features import Features
from twoprong.models.zoo import build
from twoprong.storage import load_tensors, save_tensors

FILES = ("README.md", "classifier.safetensors", "denoiser.safetensors", "detector.safetensors", "manifest.json")


@pytest.fixture(scope="module")
def original(defense, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "good"
    defense.save(path)
    return path


@pytest.fixture
def bundle(original, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "bundle"))


def sign(bundle: Path, **changes) -> None:
    """Rewrite the manifest with changes and a digest that fits: damage that only the checks behind the digest can see."""
    manifest = json.loads((bundle / "manifest.json").read_text()) | changes | {"digest": BLANK}
    for name in manifest["files"]:
        content = (bundle / name).read_bytes()
        manifest["files"][name] = {"bytes": len(content), "sha256": _digest(content)}
    text = json.dumps(manifest, indent=2)
    (bundle / "manifest.json").write_text(text.replace(BLANK, _digest(text.encode())))


def test_what_is_loaded_decides_as_what_was_saved(defense, original, digits):
    loaded = tp.load(original)
    for name, tensor in defense.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    batch = digits.test.images[:50]
    before, after = defense(batch), loaded(batch)
    assert torch.equal(before.logits, after.logits)
    assert (before.statistic, before.threshold, before.p_value) == (after.statistic, after.threshold, after.p_value)
    assert loaded.config == defense.config
    assert loaded.about == defense.about


def test_a_bundle_holds_what_it_says_and_nothing_else(original):
    assert sorted(file.name for file in original.iterdir()) == sorted(FILES)
    manifest = read_manifest(original)
    assert manifest["preprocessing"] == {"channels": 1, "height": 8, "width": 8, "range": [0, 1]}
    assert [row["batch_size"] for row in manifest["thresholds"]][:2] == [1, 2]
    assert set(manifest["about"]["split_hashes"]) == {"denoiser", "kernel", "reference", "calibration"}
    assert manifest["config"]["seed"] == 0
    assert not list(original.parent.glob(".*")), "temporary directories are left behind"


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_byte_anywhere_is_refused_by_name(bundle, name):
    file = bundle / name
    content = file.read_bytes()
    draw = torch.Generator().manual_seed(0)
    places = {0, len(content) - 1, *torch.randint(len(content), (40,), generator=draw).tolist()}
    for place in places:
        for mask in (0x01, 0x80):
            damaged = bytearray(content)
            damaged[place] ^= mask
            file.write_bytes(damaged)
            with pytest.raises(BundleError, match=name) as caught:
                tp.load(bundle)
            assert "\n" not in str(caught.value)
    file.write_bytes(content)
    tp.load(bundle)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused_by_name(bundle, name):
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=name):
        tp.load(bundle)


def test_a_truncated_file_is_refused_by_name(bundle):
    file = bundle / "denoiser.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"denoiser\.safetensors"):
        tp.load(bundle)


@pytest.mark.parametrize("version", [0, 4, "1", None])
def test_a_foreign_format_version_is_refused(bundle, version):
    sign(bundle, format=version)
    with pytest.raises(BundleError, match=r"manifest\.json: format .*reads formats 1, 2, 3"):
        tp.load(bundle)


def downgrade(bundle: Path, version: int, **changes) -> None:
    """The manifest as formats 1 and 2 had it: the classifier and the features by themselves, no list of parts."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    parts = manifest.pop("parts")
    entry = {key: value for key, value in parts["networks"]["classifier"].items() if key != "kind"}
    manifest |= {"format": version, "classifier": entry, "features": parts["extractor"]["features"]}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    sign(bundle, **changes)


def test_a_bundle_of_format_2_is_read_as_ever(defense, bundle, digits):
    downgrade(bundle, 2)
    loaded, batch = tp.load(bundle), digits.test.images[:50]
    for name, tensor in defense.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert loaded.flagged.settings() == defense.flagged.settings()
    assert loaded(batch).statistic == defense(batch).statistic
    assert read_manifest(bundle)["parts"]["flagged"]["kind"] == "denoiser"


def test_a_bundle_of_format_1_is_read_as_ever(defense, bundle):
    for file in bundle.glob("*.safetensors"):
        tensors = load_tensors(file)[0]
        file.unlink()
        save_file(tensors, file, metadata={"json": "{}"})
    config = json.loads((bundle / "manifest.json").read_text())["config"]
    del config["kernel"]["projections"], config["denoiser"]["guide"], config["denoiser"]["noise"]  # which there were not
    downgrade(bundle, 1, config=config)
    loaded = tp.load(bundle)
    assert loaded.config.kernel.projections == (0,)
    assert (loaded.config.denoiser.guide, loaded.config.denoiser.noise) == ("detector", "symmetric")
    for name, tensor in defense.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_pixels_and_half_precision_weights_take_little_room(defense, original, tmp_path):
    """The digits' pixels are sixteenths: exact in one byte each."""
    assert load_file(original / "detector.safetensors")["reference_pixels"].dtype == torch.int8
    read = load_tensors(original / "detector.safetensors")[0]["reference_pixels"]
    assert torch.equal(read, defense.detector.reference_pixels)
    rounded = copy.deepcopy(defense)
    for tensor in rounded.flagged.denoiser.state_dict().values():
        tensor.copy_(tensor.half() if tensor.is_floating_point() else tensor)
    rounded.save(tmp_path / "rounded")
    sizes = [(path / "denoiser.safetensors").stat().st_size for path in (tmp_path / "rounded", original)]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".safetensors")])
@pytest.mark.parametrize("change", ["extra", "missing", "misshapen"])
def test_tensors_that_do_not_fit_are_refused_by_file_even_when_signed(bundle, name, change):
    file = bundle / name
    tensors = load_file(file)
    victim = sorted(tensors)[-1]
    if change == "extra":
        tensors["extra"] = torch.zeros(3)
    elif change == "missing":
        del tensors[victim]
    else:
        tensors[victim] = torch.zeros(*tensors[victim].shape, 2)
    save_file(tensors, file)
    sign(bundle)
    with pytest.raises(BundleError, match=name) as caught:
        tp.load(bundle)
    assert "\n" not in str(caught.value)


def test_a_file_list_that_reaches_out_of_the_bundle_is_refused(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    sign(bundle, files=manifest["files"] | {"../bundle/README.md": {"bytes": 1, "sha256": "0"}})
    with pytest.raises(BundleError, match=r"manifest\.json: expected the files"):
        tp.load(bundle)


def test_settings_of_another_version_are_refused(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    sign(bundle, config=manifest["config"] | {"future": 1})
    with pytest.raises(BundleError, match=r"manifest\.json: settings"):
        tp.load(bundle)


def test_no_bundle_at_all(tmp_path):
    with pytest.raises(BundleError, match="nowhere: no such bundle"):
        tp.load(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="file: no such bundle"):
        tp.load(tmp_path / "file")
    with pytest.raises(BundleError, match=r"manifest\.json: missing"):
        tp.load(tmp_path)


def test_it_writes_over_a_bundle_only_when_told_and_over_nothing_else_ever(defense, bundle, tmp_path):
    with pytest.raises(BundleError, match="exists already"):
        defense.save(bundle)
    (bundle / "manifest.json").write_text("{}")
    defense.save(bundle, overwrite=True)
    tp.load(bundle)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(BundleError, match="is no bundle"):
        defense.save(precious, overwrite=True)
    assert (precious / "thesis.txt").read_text() == "years of work"


def test_a_save_that_fails_leaves_the_old_bundle(defense, bundle, monkeypatch):
    before = {file.name: file.read_bytes() for file in bundle.iterdir()}

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=r"No space left on device: '.*/bundle/classifier\.safetensors'"):
        defense.save(bundle, overwrite=True)
    assert {file.name: file.read_bytes() for file in bundle.iterdir()} == before
    assert list(bundle.parent.iterdir()) == [bundle]


def test_of_two_writers_one_writes_and_one_is_told(defense, bundle, tmp_path, monkeypatch):
    """The second tries while the first is between two files."""
    other, losses, save = copy.deepcopy(defense), [], save_tensors
    with torch.no_grad():
        next(other.flagged.denoiser.parameters()).add_(1)

    def interrupted(path, *rest, **more):
        if path.name == "denoiser.safetensors":
            with pytest.raises(BundleError, match=r"^[^\n]*bundle: another process is writing it; wait for it") as loss:
                other.save(bundle, overwrite=True)
            losses.append(loss)
        save(path, *rest, **more)

    monkeypatch.setattr("twoprong.bundle.save_tensors", interrupted)
    defense.save(bundle, overwrite=True)
    assert losses
    assert torch.equal(next(tp.load(bundle).flagged.denoiser.parameters()), next(defense.flagged.denoiser.parameters()))
    assert list(tmp_path.iterdir()) == [bundle]
    monkeypatch.undo()
    other.save(bundle, overwrite=True)
    tp.load(bundle)


def test_a_bundle_that_is_written_anew_while_it_is_read_is_read_again(defense, bundle, monkeypatch):
    other, times, read = copy.deepcopy(defense), [], load_tensors
    with torch.no_grad():
        next(other.flagged.denoiser.parameters()).add_(1)

    def interrupted(path):
        times.append(path)
        if len(times) == 2:  # the detector is of the old bundle, all that follows of the new one
            other.save(bundle, overwrite=True)
        return read(path)

    monkeypatch.setattr("twoprong.bundle.load_tensors", interrupted)
    loaded = tp.load(bundle)
    assert len(times) > 3
    assert torch.equal(next(loaded.flagged.denoiser.parameters()), next(other.flagged.denoiser.parameters()))


def test_a_bundle_that_a_kill_left_without_its_name_is_found_and_kept(defense, bundle):
    bundle.rename(bundle.with_name(".bundle.old"))  # what two renames with a kill between them leave
    tp.load(bundle)
    with pytest.raises(BundleError, match="exists already"):
        defense.save(bundle)
    assert (bundle / "manifest.json").is_file()
    assert list(bundle.parent.iterdir()) == [bundle]


class Foreign(nn.Module):
    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        self.body = ours

    def forward(self, x):
        return self.body(x)


@pytest.fixture(scope="module")
def foreign(classifier, few, tiny_config, tmp_path_factory):
    model = Foreign(classifier)
    path = tmp_path_factory.mktemp("foreign") / "bundle"
    tp.fit(model, few, config=tiny_config, held_out="none").save(path)
    return model, path


def test_a_foreign_classifier_stays_out_of_the_bundle_and_must_be_given(foreign, digits):
    model, path = foreign
    assert not (path / "classifier.safetensors").exists()
    with pytest.raises(BundleError, match=r"Foreign.*classifier="):
        tp.load(path)
    assert len(tp.load(path, classifier=model)(digits.test.images[:20]).labels) == 20


def test_another_classifier_than_the_one_it_was_fitted_around_is_refused(foreign, classifier):
    _, path = foreign
    state = {name: value.clone() for name, value in classifier.state_dict().items()}
    other = build("cnn", 10, 1)
    other.load_state_dict(state)
    with torch.no_grad():
        other.head.bias[0] += 1e-3
    with pytest.raises(BundleError, match="not the one it was fitted around"):
        tp.load(path, classifier=Foreign(other.eval()))


def test_a_bundle_can_be_loaded_and_used_in_inference_mode(defense, original, digits):
    batch = digits.test.images[:20]
    with torch.inference_mode():
        assert tp.load(original)(batch).statistic == defense(batch).statistic


def test_features_of_several_layers_come_back(defense, digits, tmp_path):
    saved = tp.Defense(**vars(replace(defense.parts, extractor=Features(defense.classifier, ("hidden",)))))
    saved.save(tmp_path / "bundle")
    loaded = tp.load(tmp_path / "bundle")
    assert loaded.extractor.source == ("hidden",)
    assert loaded(digits.test.images[:20]).statistic == saved(digits.test.images[:20]).statistic


def test_features_from_a_callable_must_be_given_again(classifier, digits, few, tiny_config, tmp_path):
    def pixels(images):
        return images.flatten(1)

    path = tmp_path / "bundle"
    saved = tp.fit(classifier, few, config=tiny_config, features=pixels)
    saved.save(path)
    with pytest.raises(BundleError, match="features="):
        tp.load(path)
    batch = digits.test.images[:20]
    assert tp.load(path, features=pixels)(batch).statistic == saved(batch).statistic


def test_source_has_no_pickle_reader():
    source = Path(tp.__file__).parent
    readers = re.compile(
        r"(import|from) (pickle|joblib|cloudpickle|dill|shelve)\b|torch\.load\(|allow_pickle=True|read_pickle"
    )
    safe = 'torch.load(file, map_location="cpu", weights_only=True)'  # allowed once: a user's own .pt, plain tensors only
    texts = {file.relative_to(source).as_posix(): file.read_text() for file in source.rglob("*.py")}
    assert texts["models/weights.py"].count(safe) == 1
    texts["models/weights.py"] = texts["models/weights.py"].replace(safe, "")
    assert [name for name, text in texts.items() if readers.search(text)] == []

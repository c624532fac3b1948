from pathlib import Path

import pytest
import torch

import twoprong as tp
from twoprong import shipped
from twoprong.bundle import read_manifest
from twoprong.data import load_data
from twoprong.data.tensors import image_digests
from twoprong.errors import BundleError
from twoprong.storage import load_tensors

NAME = "cifar10-small"
HARDENED = "cifar10-small-hardened"


@pytest.fixture(scope="module", params=[NAME, HARDENED])
def loaded(request):
    return tp.load(request.param)


@pytest.mark.parametrize(("bundle", "megabytes"), [(NAME, 12), (HARDENED, 20)])
def test_what_comes_with_the_package_is_small(bundle, megabytes):
    files = [*(shipped.HOME / bundle).iterdir(), shipped.images_of(NAME)]
    assert sum(file.stat().st_size for file in files) <= megabytes * 1e6


def test_the_packaged_bundle_fits_its_images(loaded):
    data = load_data(NAME)
    assert tuple(loaded.reference_images().shape[1:]) == tuple(data.test.images.shape[1:])
    assert loaded.about["classes"] == list(data.classes)
    right = loaded.logits(data.test.images[:100], "passing")[0].argmax(1) == data.test.labels[:100]
    assert right.float().mean() > 0.8
    assert len(loaded(data.test.images[:50]).labels) == 50


def test_nothing_was_fitted_on_the_test_images(loaded):
    known = torch.cat([image_digests(loaded.reference_images()), loaded.detector.calibrated_on])
    assert len(loaded.detector.calibrated_on) > 0
    assert not torch.isin(image_digests(load_data(NAME).test.images), known).any()


def test_its_networks_are_stored_in_eight_or_sixteen_bits():
    from safetensors.torch import load_file

    for part in ("classifier", "denoiser"):
        file = shipped.HOME / NAME / f"{part}.safetensors"
        stored = {name: tensor.dtype for name, tensor in load_file(file).items() if not name.endswith("num_batches_tracked")}
        assert set(stored.values()) == {torch.int8, torch.float16}
        assert {tensor.dtype for tensor in load_tensors(file)[0].values() if tensor.is_floating_point()} == {torch.float32}


def test_a_name_as_text_or_as_a_path_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shipped.names() == [NAME, HARDENED]
    assert shipped.find(NAME) == shipped.find(Path(NAME)) == shipped.HOME / NAME
    assert {shipped.source_of(bundle) for bundle in (NAME, HARDENED, shipped.HOME / NAME)} == {NAME}
    assert read_manifest(NAME)["about"]["classes"][0] == "airplane"


def test_a_path_that_exists_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir()
    assert shipped.find(NAME) == Path(NAME)
    assert shipped.source_of(NAME) is None
    with pytest.raises(BundleError, match=r"manifest\.json: missing; cifar10-small is not a bundle"):
        tp.load(NAME)


def test_a_name_that_does_not_exist_gets_the_ones_that_do(tmp_path, monkeypatch):
    with pytest.raises(BundleError, match=r"CIFAR10_small: no such bundle \(did you mean 'cifar10-small'\?\)"):
        tp.load("CIFAR10_small")
    with pytest.raises(BundleError, match=rf"zzz: no such bundle; .*comes with the package: {NAME}, {HARDENED}$"):
        shipped.source_of("zzz")
    monkeypatch.setattr(shipped, "HOME", tmp_path)
    (tmp_path / ".half-written.partial").mkdir()
    with pytest.raises(BundleError, match=r"zzz: no such bundle; expected a bundle's directory$"):
        tp.load("zzz")

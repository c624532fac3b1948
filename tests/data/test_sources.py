import numpy as np
import pytest
import torch
from PIL import Image

from twoprong.data.digits import load_digits
from twoprong.data.sources import SOURCES, load_data
from twoprong.errors import DataError, InputError
from twoprong.storage import save_tensors


@pytest.fixture
def pets(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for index in range(10):
            Image.new("L", (4, 4), index).save(tmp_path / "pets" / name / f"{index}.png")
    return tmp_path / "pets"


def test_digits_by_name():
    assert torch.equal(load_data("digits").test.images, load_digits().test.images)


def test_cifar10_by_name(tmp_path):
    images, labels = np.zeros((2, 32, 32, 3), np.uint8), np.array([1, 2])
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    data = load_data("cifar10", root=tmp_path)
    assert data.name == "cifar10"
    assert data.train.labels.tolist() == [1, 2]


def test_cifar10_asks_for_its_place():
    with pytest.raises(DataError, match=r"cifar10: .*pass --data-root .*cifar10\.npz"):
        load_data("cifar10")


def test_the_test_images_of_the_packaged_bundle_by_name():
    data = load_data("cifar10-small")
    assert data.name == "cifar10-small"
    assert data.test.images.shape == (500, 3, 32, 32)
    assert data.test.images.dtype == torch.float32
    assert torch.equal((data.test.images * 255).round() / 255, data.test.images)
    assert data.test.labels.dtype == torch.int64
    assert set(data.test.labels.tolist()) == set(range(len(data.classes)))
    assert data.train.images.shape == (0, 3, 32, 32)
    assert len(data.train) == 0


def test_packaged_images_that_are_missing_or_of_another_kind_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("twoprong.shipped.HOME", tmp_path)
    with pytest.raises(DataError, match=r"cifar10-small-test\.safetensors"):
        load_data("cifar10-small")
    save_tensors(tmp_path / "cifar10-small-test.safetensors", {"images": torch.zeros(1)})
    with pytest.raises(DataError, match=r"cifar10-small-test\.safetensors: .*'labels' is missing"):
        load_data("cifar10-small")


def test_a_folder_by_path_with_its_settings(pets):
    data = load_data(str(pets), image_size=2)
    assert data.name == "pets"
    assert data.train.images.shape == (16, 1, 2, 2)
    assert data.train.labels.tolist() not in ([0] * 8 + [1] * 8, [1] * 8 + [0] * 8), "neighbours would be of one class"
    (pets / "cat" / "bad.png").touch()
    with pytest.raises(DataError, match=r"bad\.png"):
        load_data(str(pets), strict=True)


def test_a_path_from_home(pets, monkeypatch):
    monkeypatch.setenv("HOME", str(pets.parent))
    assert load_data("~/pets").classes == ("cat", "dog")


def test_a_named_source_goes_before_a_folder_of_that_name(pets, monkeypatch):
    monkeypatch.chdir(pets.parent)
    pets.rename("digits")
    assert len(load_data("digits").classes) == 10
    assert load_data("./digits").classes == ("cat", "dog")


def test_unknown_sources_get_the_choices(tmp_path):
    with pytest.raises(DataError, match="did you mean 'cifar10'") as caught:
        load_data("CIFAR-10")
    assert all(name in str(caught.value) for name in SOURCES)
    assert "a folder with one sub-folder per class" in str(caught.value)
    with pytest.raises(DataError, match="neither a named source nor a folder; expected one of"):
        load_data(str(tmp_path / "zzz"))
    (tmp_path / "file.zip").touch()
    with pytest.raises(DataError, match=r"file\.zip' is a file"):
        load_data(str(tmp_path / "file.zip"))


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("digits", {"image_size": 16}, "image size: expected none for 'digits'"),
        ("cifar10", {"image_size": 16}, "image size: expected none for 'cifar10'"),
        ("digits", {"root": "somewhere"}, "data root: expected none for 'digits'"),
        ("cifar10-small", {"root": "somewhere"}, "data root: expected none for 'cifar10-small'"),
        ("cifar10-small", {"image_size": 16}, "image size: expected none for 'cifar10-small'"),
    ],
)
def test_settings_without_effect_are_refused(source, settings, message):
    with pytest.raises(InputError, match=message):
        load_data(source, **settings)


def test_a_root_beside_a_folder_is_refused(pets):
    with pytest.raises(InputError, match="data root: expected none beside the folder"):
        load_data(str(pets), root=pets)

"""Networks of other packages: small stand-ins with the same two or three functions. `tests/tools/test_try_adapters.py`
has the real packages."""

import json
import sys
from collections import namedtuple
from types import ModuleType

import pytest
import torch
from torch import nn

from twoprong.errors import InputError
from twoprong.models.adapters import ADAPTERS, IMAGENET, Adapted, adapted, origin_of, rebuild

IMAGES = torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))
Output = namedtuple("Output", "logits")


def net(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(108, classes))


class WithLogits(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net(3)

    def forward(self, images):
        return Output(self.inner(images))


def module(name, **content):
    made = ModuleType(name)
    vars(made).update(content)
    return made


def create(name, pretrained=True, num_classes=1000):
    if name != "tiny":
        raise RuntimeError(f"Unknown model ({name})")
    made = net(num_classes)
    assert not pretrained  # nothing may be downloaded
    made.pretrained_cfg = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5)}
    return made


class Auto:
    @staticmethod
    def from_pretrained(path, local_files_only=False, trust_remote_code=True, use_safetensors=None):
        assert local_files_only
        assert not trust_remote_code
        assert use_safetensors
        return WithLogits()


@pytest.fixture
def packages(monkeypatch):
    def get_model(name, weights="DEFAULT", num_classes=1000):
        if name != "tiny":
            raise ValueError(f"Unknown model {name}")
        assert weights is None
        return net(num_classes)

    models = module("torchvision.models", get_model=get_model)
    for made in (
        module("torchvision", models=models),
        models,
        module("timm", create_model=create),
        module("transformers", AutoModelForImageClassification=Auto),
    ):
        monkeypatch.setitem(sys.modules, made.__name__, made)


def normalised(images, mean, std):
    return (images - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [("torchvision:tiny", *IMAGENET), ("timm:tiny", (0.1, 0.2, 0.3), (0.5, 0.5, 0.5))],
)
def test_a_packages_network_is_normalised_as_the_package_says(packages, name, mean, std):
    model, trained = adapted(name, 5)
    assert not trained
    assert model(IMAGES).shape == (4, 5)
    assert torch.allclose(model(IMAGES), model.network(normalised(IMAGES, mean, std)), atol=1e-5)


def test_mean_and_std_go_before_the_packages(packages):
    model, _ = adapted("timm:tiny", 5, (0.5,), (0.25,))
    assert torch.allclose(model(IMAGES), model.network((IMAGES - 0.5) / 0.25), atol=1e-5)
    assert origin_of(model) == {"name": "timm:tiny", "classes": 5, "mean": (0.5,), "std": (0.25,)}


def test_a_directory_of_hugging_face_comes_trained_and_gives_its_logits(packages, tmp_path):
    with pytest.raises(InputError, match="save_pretrained"):
        adapted(f"hf:{tmp_path}", 3)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.4] * 3, "image_std": [0.2] * 3}))
    model, trained = adapted(f"hf:{tmp_path}", 3)
    assert trained
    assert torch.allclose(model(IMAGES), model.network.inner((IMAGES - 0.4) / 0.2), atol=1e-5)
    assert origin_of(model) is None  # the directory need not be there where a bundle is loaded


@pytest.mark.parametrize("name", ["torchvision:tyni", "timm:tyni"])
def test_a_name_that_the_package_does_not_know_is_said(packages, name):
    with pytest.raises(InputError, match=r"--classifier t.*:tyni: Unknown model"):
        adapted(name, 5)


def test_a_factory_that_fails_is_named_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "broken_nets.py").write_text("def make():\n    raise RuntimeError('no\\nGPU')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"^--classifier broken_nets:make: .* without arguments \(no\)$"):
        adapted("broken_nets:make", 3)


@pytest.mark.parametrize("package", ADAPTERS)
def test_a_package_that_is_missing_is_named(monkeypatch, tmp_path, package):
    (tmp_path / "config.json").touch()
    name = {"hf": "transformers"}.get(package, package)
    for missing in (name, f"{name}.models"):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=f"{name} cannot be imported.*pip install {name}"):
        adapted(f"{package}:{tmp_path}", 5)


def test_a_package_built_for_another_torch_is_not_to_be_installed_again_as_it_is(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match=rf"timm cannot be imported \(operator.*\); install a build.*torch {torch.__version__[:3]}"
    ):
        adapted("timm:tiny", 5)


@pytest.mark.parametrize(("mean", "std"), [((0.1, 0.2), (1, 1)), ((0.5,), (0.0,)), ((0.1, 0.2, 0.3), (1.0,))])
def test_statistics_that_fit_no_image_are_refused(mean, std):
    with pytest.raises(InputError, match="mean, std: expected 1 or 3 numbers each"):
        Adapted(net(2), mean, std)


def test_a_network_is_made_again_only_from_a_module_that_is_allowed(packages):
    model, _ = adapted("timm:tiny", 5, (0.5,), (0.25,))
    with pytest.raises(InputError, match=r"allow=\['timm'\]"):
        rebuild(origin_of(model), ["timm.models", "tim"])
    with pytest.raises(InputError, match=r"allow=\['timm'\]"):
        rebuild(origin_of(model), "my_timm.models")  # one module, not letters among which to look
    again = rebuild(origin_of(model), "timm")
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(IMAGES), model(IMAGES))

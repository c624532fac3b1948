"""Contracts that every classifier of the zoo keeps, and the zoo's own answers to bad requests."""

import pytest
import torch
from torch import Tensor, nn

from twoprong.errors import InputError
from twoprong.models.normalise import Normalise
from twoprong.models.zoo import MODELS, ModelSpec, build
from twoprong.seeds import generator, initialised

NAMES = [*MODELS, "wrn-10-1", "wrn-10-1-authors"]
FEATURES = {"cnn": 128, "resnet18": 512, "resnet18-silu": 512, "resnet18-thin": 64, "resnet50": 2048, "swin-t": 768}
FEATURES |= {"wrn-10-1": 64, "wrn-10-1-authors": 64}


@pytest.fixture(scope="module", params=[(name, channels) for name in NAMES for channels in (1, 3)], ids=str)
def model(request: pytest.FixtureRequest) -> nn.Module:
    name, channels = request.param
    with initialised(0, name, channels):
        return build(name, classes=7, channels=channels).eval()


def images_for(model: nn.Module, count: int = 2, side: int = 16) -> Tensor:
    return torch.rand(count, model.spec.channels, side, side, generator=generator(0, "images"))


def test_logits_have_one_row_per_image_and_repeat_exactly_in_eval(model):
    images = images_for(model, count=3)
    with torch.no_grad():
        logits, again = model(images), model(images)
    assert logits.shape == (3, 7)
    assert logits.isfinite().all()
    assert torch.equal(logits, again)


def test_an_image_is_classified_the_same_alone_and_in_a_batch(model):
    images = images_for(model)
    with torch.no_grad():
        together, alone = model(images), model(images[1:])
    torch.testing.assert_close(together[1:], alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[0], together[1], rtol=1e-4, atol=1e-5)


def test_the_last_linear_layer_to_run_receives_one_feature_vector_per_image(model):
    calls: list[tuple[nn.Module, torch.Size]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs: calls.append((layer, inputs[0].shape)))
        for layer in model.modules()
        if isinstance(layer, nn.Linear)
    ]
    with torch.no_grad():
        model(images_for(model))
    for hook in hooks:
        hook.remove()
    layer, shape = calls[-1]
    assert layer is model.head
    assert shape == (2, FEATURES[model.spec.name])


def test_the_gradient_reaches_every_image(model):
    images = images_for(model).requires_grad_()
    model(images).logsumexp(dim=1).sum().backward()
    assert images.grad.isfinite().all()
    assert (images.grad.flatten(1).abs().amax(dim=1) > 0).all()
    model.zero_grad()


def test_normalisation_is_inside_and_saved(model):
    """Moving the images and the stored mean by the same amount must cancel."""
    images = images_for(model) / 2
    stored = dict(model.named_buffers())["normalise.mean"]
    with torch.no_grad():
        before, brighter = model(images), model(images + 0.125)
        stored += 0.125
        moved_together = model(images + 0.125)
        stored -= 0.125
    torch.testing.assert_close(moved_together, before, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(brighter, before, rtol=1e-4, atol=1e-5)
    assert {"normalise.mean", "normalise.std"} <= model.state_dict().keys()


def test_normalise_maps_the_mean_to_zero_and_one_deviation_to_one():
    grey = torch.tensor([0.5, 0.75, 0.0]).reshape(1, 3, 1, 1)
    assert Normalise(3)(grey).flatten().tolist() == [0.0, 1.0, -2.0]
    assert Normalise(3, mean=0.25, std=0.5)(grey).flatten().tolist() == [0.5, 1.0, -0.5]


def test_normalise_can_hold_other_constants_per_channel():
    layer = Normalise(3)
    layer.load_state_dict({"mean": torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1), "std": torch.ones(3, 1, 1)})
    assert layer(torch.full((1, 3, 1, 1), 0.5)).flatten().tolist() == [0.5, 0.0, -0.5]


@pytest.mark.parametrize("name", ["cnn", "wrn-10-2"])
def test_the_spec_and_the_state_rebuild_the_model(name):
    model = build(name, classes=4, channels=1).eval()
    assert model.spec == ModelSpec(name, 4, 1)
    twin = build(model.spec.name, model.spec.classes, model.spec.channels).eval()
    images = images_for(model)
    with torch.no_grad():
        assert not torch.equal(model(images), twin(images))
        twin.load_state_dict(model.state_dict())
        assert torch.equal(model(images), twin(images))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("resnet-18", "resnet18"), ("ResNet50", "resnet50"), ("swin", "swin-t"), ("wrn28-10", "wrn-28-10")],
)
def test_a_misspelt_name_is_answered_with_the_nearest_and_all_known(name, meant):
    with pytest.raises(InputError, match=f"did you mean '{meant}'") as caught:
        build(name, 10, 3)
    for known in MODELS:
        assert known in str(caught.value)


@pytest.mark.parametrize("name", ["", "transformer-xl", "wrn-28-0", "wrn--28-10", "xwrn-28-10", "wrn-28-10x"])
def test_names_that_are_no_model_are_refused(name):
    with pytest.raises(InputError, match="unknown model"):
        build(name, 10, 3)


@pytest.mark.parametrize(("classes", "channels", "culprit"), [(1, 3, "classes"), (0, 1, "classes"), (2, 2, "channels")])
def test_impossible_shapes_are_refused(classes, channels, culprit):
    with pytest.raises(InputError, match=f"^{culprit}: expected"):
        build("cnn", classes, channels)

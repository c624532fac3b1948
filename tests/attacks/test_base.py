"""The contract, for every attack of the registry in every norm."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from twoprong.attacks import ATTACKS, FGSM, MMA, NORMS, PGD
from twoprong.attacks.base import Attack
from twoprong.errors import InputError
from twoprong.models.modes import evaluating
from twoprong.seeds import generator

EPS = {"linf": 0.1, "l2": 0.9}


@pytest.fixture(params=sorted(NORMS))
def norm(request):
    return request.param


@pytest.fixture(params=sorted(ATTACKS))
def attack(request, norm):
    return ATTACKS[request.param](eps=EPS[norm], norm=norm, **few_steps(ATTACKS[request.param], EPS[norm] / 3))


def few_steps(kind, step):
    """Fewer steps than by default, each of a third of the budget, for attacks that take several."""
    known = kind.__dataclass_fields__
    settings = {"steps": 5, "step": step, "draws": 2, "square_steps": 20, "searches": 2, "penalties": (0.1, 10.0), "lr": 0.1}
    return {name: value for name, value in settings.items() if name in known}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_whole_batch_comes_back_inside_ball_and_range(attack, build_model, batch, n, channels):
    images, labels = batch(n, channels)
    original = images.clone()
    result = attack(build_model(channels), images, labels, generator(0, "attack"))
    assert result.images.shape == images.shape
    assert result.images.dtype == images.dtype
    assert not result.images.requires_grad
    sizes = attack.ball.size(result.images - original)
    assert sizes.max() <= attack.eps + 1e-6
    if isinstance(attack, FGSM | PGD | MMA):  # others leave alone what is misclassified already, or what they cannot fool
        assert sizes.min() > 0.1 * attack.eps
    assert result.images.min() >= 0
    assert result.images.max() <= 1
    assert torch.equal(images, original)


def test_images_keep_their_order(attack, build_model, batch):
    images, labels = batch(7)
    small = replace(attack, eps=1e-4)
    found = small(build_model(), images, labels, generator(0, "attack")).images
    distances = torch.cdist(found.flatten(1), images.flatten(1))
    assert distances.argmin(1).tolist() == list(range(7))


def test_the_same_generator_gives_the_same_images(attack, build_model, batch):
    model, (images, labels) = build_model(), batch(5)
    torch.manual_seed(1)
    first = attack(model, images, labels, generator(3, "attack"))
    torch.manual_seed(2)
    again = attack(model, images, labels, generator(3, "attack"))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.success, again.success)


def test_success_is_what_the_model_gets_wrong(attack, build_model, batch):
    model = build_model()
    images, _ = batch(60)
    labels = model(images).argmax(1)  # right on all of them, before
    labels[:5] = (labels[:5] + 1) % 4
    weak = replace(attack, eps=attack.eps / 5)
    result = weak(model, images, labels, generator(0, "attack"))
    assert torch.equal(result.success, model(result.images).argmax(1) != labels)
    assert result.accuracy == pytest.approx((model(result.images).argmax(1) == labels).double().mean().item())
    assert 0 < result.accuracy < 1


def test_the_model_comes_back_as_it_was(attack, build_model, batch):
    """In train mode but for the batch norm, with gradients from elsewhere on one layer: all of it must survive."""
    model, (images, labels) = build_model(), batch(7)
    expected = attack(model, images, labels, generator(0, "attack")).images
    model.train()
    model[1].eval()
    model[2].eval()
    model[5].weight.grad = torch.full_like(model[5].weight, 7.0)
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    found = attack(model, images, labels, generator(0, "attack")).images
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert (model[5].weight.grad == 7).all()
    others = [parameter for parameter in model.parameters() if parameter is not model[5].weight]
    assert all(parameter.grad is None for parameter in others)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(found, expected)  # dropout and batch statistics played no part


def test_batch_norm_in_train_mode_is_not_updated(attack, build_model, batch):
    model, (images, labels) = build_model().train(), batch(7)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    attack(model, images, labels, generator(0, "attack"))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.training


@pytest.mark.parametrize("name", ["fgsm", "bim", "mma", "cw"])
def test_an_image_is_attacked_alike_alone_and_in_a_batch(name, norm, build_model, batch):
    """In float64, for attacks without a random start: nothing of a batch leaks into its neighbours."""
    attack = ATTACKS[name](eps=EPS[norm], norm=norm, **few_steps(ATTACKS[name], EPS[norm] / 3))
    model, (images, labels) = build_model(dtype=torch.float64).train(), batch(7, dtype=torch.float64)
    together = attack(model, images, labels).images
    alone = torch.cat([attack(model, images[i : i + 1], labels[i : i + 1]).images for i in range(7)])
    assert torch.allclose(together, alone, atol=1e-9)


def test_callers_without_gradients_and_images_with_them(attack, build_model, batch):
    model, (images, labels) = build_model(), batch(4)
    expected = attack(model, images, labels, generator(0, "attack"))
    with torch.no_grad():
        found = attack(model, images.requires_grad_(), labels, generator(0, "attack"))
    assert torch.equal(found.images, expected.images)
    again = attack(model, images, labels, generator(0, "attack"))
    assert not again.images.requires_grad
    assert images.grad is None


def test_any_callable_will_do_for_a_model(attack, build_model, batch):
    model, (images, labels) = build_model(), batch(4)
    found = attack(model.forward, images, labels, generator(0, "attack"))
    assert torch.equal(found.images, attack(model, images, labels, generator(0, "attack")).images)


def test_a_model_without_gradient_gives_finite_images(attack, batch):
    images, labels = batch(4)
    found = attack(lambda x: 0 * x.flatten(1)[:, :4], images, labels, generator(0, "attack")).images
    assert found.isfinite().all()
    assert attack.ball.size(found - images).max() <= attack.eps + 1e-6


@pytest.mark.parametrize("name", sorted(ATTACKS))
@pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf, "8/255", None, True])
def test_a_nonsensical_budget_is_refused(name, eps):
    with pytest.raises(InputError, match=r"^eps: expected"):
        ATTACKS[name](eps=eps)


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_unknown_norm_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match=r"^norm: expected one of linf, l2, got 'l1'"):
        ATTACKS[name](norm="l1")


@pytest.mark.parametrize("kind", [PGD, MMA])
@pytest.mark.parametrize("setting", [{"steps": 0}, {"steps": -3}, {"steps": 2.5}, {"step": -0.1}, {"step": math.nan}])
def test_nonsensical_steps_are_refused(kind, setting):
    (name,) = setting
    with pytest.raises(InputError, match=rf"^{name}: expected"):
        kind(**setting)


def test_no_targets_are_refused():
    with pytest.raises(InputError, match=r"^targets: expected"):
        MMA(targets=0)


def test_a_budget_of_zero_returns_the_images(norm, build_model, batch):
    images, labels = batch(3)
    for kind in ATTACKS.values():
        attack = kind(norm=norm, **{**few_steps(kind, 0.0), "eps": 0.0})
        assert torch.equal(attack(build_model(), images, labels).images, images)


def test_images_and_labels_are_checked(attack, build_model, batch):
    images, labels = batch(3)
    with pytest.raises(InputError, match="images"):
        attack(build_model(), images * 255, labels)
    with pytest.raises(InputError, match="labels"):
        attack(build_model(), images, labels[:2])


def test_settings_are_frozen_and_named():
    attack = PGD(eps=0.2)
    with pytest.raises(AttributeError):
        attack.eps = 0.3
    with pytest.raises(TypeError):
        FGSM(0.2)


def test_the_base_class_brings_a_stray_attack_back(norm, build_model, batch):
    class Stray(Attack):
        def perturb(self, model, images, labels, generator):
            return images + 5

    images, labels = batch(3)
    found = Stray(eps=EPS[norm], norm=norm)(build_model(), images, labels).images
    assert NORMS[norm].size(found - images).max() <= EPS[norm] + 1e-6
    assert found.max() <= 1


def test_modes_are_put_back_when_the_model_fails():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    model = nn.Sequential(nn.Dropout(), Broken()).train()
    model[0].eval()
    with pytest.raises(RuntimeError, match="no"):
        FGSM()(model, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))
    assert [module.training for module in model.modules()] == [True, False, True]


def test_evaluating_reaches_every_module():
    model = nn.Sequential(nn.Sequential(nn.Dropout()), nn.Linear(2, 2)).train()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.modules())

import math

import pytest
import torch

from twoprong.attacks.losses import LOSSES, cross_entropy, dlr, margin, mean_margin
from twoprong.seeds import generator

SHAPES = [(50, 10), (4, 50, 10), (50, 3), (50, 2), (3, 50, 2), (1, 1, 4)]


def loop_cross_entropy(z, y):
    return math.log(sum(math.exp(value) for value in z)) - z[y]


def loop_margin(z, y):
    return max(value for kind, value in enumerate(z) if kind != y) - z[y]


def loop_dlr(z, y):
    if len(z) < 3:
        return loop_margin(z, y)
    ranked = sorted(z, reverse=True)
    return loop_margin(z, y) / (ranked[0] - ranked[2])


LOOPS = {"ce": loop_cross_entropy, "margin": loop_margin, "dlr": loop_dlr}


def draw(*shape):
    """Logits in float64 of shape (..., N, classes), and labels of which about half are the likeliest class."""
    source = generator(0, "logits", *shape)
    logits = 4 * torch.randn(*shape, generator=source, dtype=torch.float64)
    labels = torch.randint(shape[-1], (shape[-2],), generator=source)
    first = logits.reshape(-1, *shape[-2:])[0].argmax(1)
    return logits, torch.where(torch.rand(shape[-2], generator=source) < 0.5, first, labels)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_each_is_its_loop_with_and_without_draws(name, shape):
    logits, labels = draw(*shape)
    loss = LOSSES[name](logits, labels)
    assert loss.shape == shape[:-1]
    rows = logits.reshape(-1, *shape[-2:]).tolist()
    expected = [[LOOPS[name](z, y) for z, y in zip(some, labels.tolist(), strict=True)] for some in rows]
    assert torch.allclose(loss, torch.tensor(expected, dtype=torch.float64).view(shape[:-1]), rtol=1e-10, atol=1e-10)


def test_every_loss_has_a_loop_to_be_held_against():
    assert set(LOOPS) == set(LOSSES)


@pytest.mark.parametrize("loss", [margin, dlr])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_margin_and_dlr_are_positive_exactly_where_the_class_is_wrong(loss, shape):
    logits, labels = draw(*shape)
    wrong = logits.argmax(-1) != labels
    assert torch.equal(loss(logits, labels) > 0, wrong)
    assert shape == (1, 1, 4) or 0 < wrong.double().mean() < 1


@pytest.mark.parametrize(("scale", "shift"), [(1000.0, 0.0), (1e-3, 0.0), (1.0, 50.0), (7.0, -3.0)])
def test_dlr_does_not_care_for_scale_and_shift(scale, shift):
    logits, labels = draw(50, 10)
    assert torch.allclose(dlr(scale * logits + shift, labels), dlr(logits, labels), rtol=1e-7)
    if scale != 1:
        assert not torch.allclose(margin(scale * logits + shift, labels), margin(logits, labels), rtol=0.1)


def test_dlr_lies_between_minus_one_and_one_where_the_class_is_right():
    logits, labels = draw(500, 10)
    values = dlr(logits, labels)
    assert values[logits.argmax(1) == labels].min() >= -1
    assert values[logits.argmax(1) == labels].max() <= 0


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("logits", [torch.tensor([[1e4, -1e4, 0.0]]), torch.zeros(1, 3)], ids=["huge", "equal"])
def test_extreme_logits_give_finite_losses_and_gradients(name, logits):
    for label in range(3):
        leaf = logits.clone().requires_grad_()
        loss = LOSSES[name](leaf, torch.tensor([label]))
        assert loss.isfinite().all()
        assert torch.autograd.grad(loss.sum(), leaf)[0].isfinite().all()


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_gradients_are_those_of_finite_differences(name):
    logits, labels = draw(2, 6, 5)
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, labels), logits.requires_grad_())


def test_the_mean_margin_averages_over_draws_without_a_graph():
    logits, labels = draw(4, 50, 10)
    found = mean_margin(logits.requires_grad_(), labels)
    expected = [sum(loop_margin(logits[k, i].tolist(), int(labels[i])) for k in range(4)) / 4 for i in range(50)]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64))
    assert not found.requires_grad


def test_cross_entropy_is_pytorchs():
    logits, labels = draw(50, 10)
    assert torch.allclose(cross_entropy(logits, labels), torch.nn.functional.cross_entropy(logits, labels, reduction="none"))

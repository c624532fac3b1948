"""The objectives against the papers' formulas, written out in float64 loops."""

import math

import pytest
import torch
from torch import nn

from twoprong.models.zoo import build
from twoprong.robust.losses import AT, AWP, HAT, MART, METHODS, TRADES, Natural, divergence
from twoprong.seeds import generator, initialised

CLASSES = 4


def softmax(row):
    shifted = [math.exp(value - max(row)) for value in row]
    return [value / sum(shifted) for value in shifted]


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def at(clean, attacked, label):
    return -math.log(attacked[label])


def trades(clean, attacked, label):
    return -math.log(clean[label]) + 6 * kl(clean, attacked)


def mart(clean, attacked, label):
    rival = max(value for number, value in enumerate(attacked) if number != label)
    return -math.log(attacked[label]) - math.log(1 - rival) + 5 * kl(clean, attacked) * (1 - clean[label])


FORMULAS = {"at": at, "trades": trades, "mart": mart, "trades-awp": trades}


def some(seed, count=6, scale=2.0):
    draw = generator(seed, "losses")
    images, adversarial = (scale * torch.randn(count, CLASSES, generator=draw, dtype=torch.double) for _ in range(2))
    return images, adversarial, torch.randint(CLASSES, (count,), generator=draw)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_losses_are_the_papers(name, seed):
    """With the identity as the model, images are logits."""
    clean, attacked, labels = some(seed)
    rows = zip(clean.tolist(), attacked.tolist(), labels.tolist(), strict=True)
    expected = sum(FORMULAS[name](softmax(c), softmax(a), y) for c, a, y in rows) / len(labels)
    assert METHODS[name].loss(lambda x: x, clean, attacked, labels).item() == pytest.approx(expected, rel=1e-10)


def test_the_attacker_inside_ascends_ce_or_the_divergence():
    clean, attacked, labels = some(0)
    rows = list(zip(clean.tolist(), attacked.tolist(), labels.tolist(), strict=True))
    ce = [-math.log(softmax(a)[y]) for _, a, y in rows]
    gap = [kl(softmax(c), softmax(a)) for c, a, _ in rows]
    for name, expected in {"at": ce, "mart": ce, "trades": gap, "trades-awp": gap}.items():
        assert METHODS[name].inner(attacked, clean, labels).tolist() == pytest.approx(expected, rel=1e-10)


def test_divergence_is_zero_for_equal_logits_and_never_negative():
    one, other, _ = some(1, count=50)
    torch.testing.assert_close(divergence(one, one + 3), torch.zeros(50, dtype=torch.double), atol=1e-12, rtol=0)
    assert (divergence(one, other) > 0).all()


@pytest.mark.parametrize("name", METHODS)
def test_sure_models_give_finite_losses_and_gradients(name):
    labels = torch.tensor([0, 1])
    clean = torch.tensor([[80.0, -80, 0, 0], [80.0, -80, 0, 0]], requires_grad=True)
    attacked = (-clean).detach().requires_grad_()  # both surely wrong, or surely right, as wrong as it gets
    loss = METHODS[name].loss(lambda x: x, clean, attacked, labels)
    gradients = torch.autograd.grad(loss, [clean, attacked], allow_unused=True)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


def small_model():
    with initialised(0, "awp"):
        return build("cnn", CLASSES, 1).train()


def batch():
    draw = generator(0, "awp batch")
    images = torch.rand(8, 1, 8, 8, generator=draw)
    return images, (images + 0.1 * torch.rand(images.shape, generator=draw)).clamp(0, 1), torch.arange(8) % CLASSES


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_awp_takes_its_gradients_at_weights_moved_by_gamma_along_the_gradient():
    """Against a copy of the model whose weights are moved by hand."""
    images, adversarial, labels = batch()
    model, probe, other = small_model(), small_model(), small_model()
    AWP(TRADES(), gamma=0.01).backward(model, images, adversarial, labels)

    TRADES().backward(probe, images, adversarial, labels)
    with torch.no_grad():
        for parameter, seen in zip(other.parameters(), probe.parameters(), strict=True):
            if parameter.ndim > 1:
                parameter.add_(0.01 * parameter.norm() * seen.grad / seen.grad.norm())
    TRADES().backward(other, images, adversarial, labels)
    for made, expected in zip(gradients(model), gradients(other), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-5)
    assert not all(
        torch.allclose(made, plain, rtol=1e-3, atol=1e-5)
        for made, plain in zip(gradients(model), gradients(probe), strict=True)
    )


def test_awp_puts_the_weights_back_and_counts_batch_norms_batches_once():
    images, adversarial, labels = batch()
    model, plain = small_model(), small_model()
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    METHODS["trades-awp"].backward(model, images, adversarial, labels)
    TRADES().backward(plain, images, adversarial, labels)
    assert all(torch.equal(now, before) for now, before in zip(model.parameters(), kept, strict=True))
    counts = [
        [int(module.num_batches_tracked) for module in each.modules() if isinstance(module, nn.BatchNorm2d)]
        for each in (model, plain)
    ]
    assert counts[0] == counts[1] == [2, 2, 2]  # one clean and one adversarial pass


def test_weights_are_put_back_after_an_error():
    images, adversarial, labels = batch()
    model = small_model()
    kept = [parameter.detach().clone() for parameter in model.parameters()]

    class FailingError(Exception):
        pass

    class Failing(AT):
        calls = 0

        def loss(self, forward, images, adversarial, labels):
            self.calls += 1
            if self.calls == 2:
                raise FailingError
            return super().loss(forward, images, adversarial, labels)

    with pytest.raises(FailingError):
        AWP(Failing()).backward(model, images, adversarial, labels)
    assert all(torch.equal(now, before) for now, before in zip(model.parameters(), kept, strict=True))


def test_betas_weigh_the_second_term():
    clean, attacked, labels = some(2)
    for method in (TRADES, MART):
        zero, one, two = (method(beta).loss(lambda x: x, clean, attacked, labels).item() for beta in (0.0, 1.0, 2.0))
        assert two - one == pytest.approx(one - zero)
        assert one > zero


def test_hat_adds_the_helpers_view_of_what_lies_beyond_the_ball():
    """With the identity as model and helper: the class that leads at x', asked for at x + h(x' - x)."""
    clean, attacked, labels = some(3)
    expected = 0.0
    for c, a, y in zip(clean.tolist(), attacked.tolist(), labels.tolist(), strict=True):
        beyond = [one + 2 * (other - one) for one, other in zip(c, a, strict=True)]
        p, named = softmax(c), a.index(max(a))
        expected += -math.log(p[y]) + 2.5 * kl(p, softmax(a)) - 0.5 * math.log(softmax(beyond)[named])
    found = HAT(nn.Identity()).loss(lambda x: x, clean, attacked, labels)
    assert found.item() == pytest.approx(expected / len(labels), rel=1e-10)


def test_ordinary_training_smooths_its_labels_and_needs_no_attack():
    clean, attacked, labels = some(4)
    rows = zip(clean.tolist(), labels.tolist(), strict=True)
    expected = sum(-sum((0.9 * (k == y) + 0.1 / CLASSES) * math.log(p) for k, p in enumerate(softmax(c))) for c, y in rows)
    assert Natural().loss(lambda x: x, clean, attacked, labels).item() == pytest.approx(expected / len(labels), rel=1e-10)
    assert not Natural().attacked
    assert TRADES().attacked

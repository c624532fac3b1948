import functools

import pytest
import torch

from twoprong.attacks.norms import NORMS
from twoprong.config import AttackConfig
from twoprong.data.digits import load_digits
from twoprong.models.zoo import build
from twoprong.robust.attack import InnerAttack, view
from twoprong.robust.losses import METHODS
from twoprong.seeds import generator, initialised


@functools.cache
def digits():
    return load_digits().train[:20]


def model():
    with initialised(0, "view"):
        return build("cnn", 10, 1).train()


def ascend(method, network, batch, attack, draw):
    """PGD from a random start on the method's inner loss, as one would write it."""
    ball, images = NORMS[attack.norm], batch.images
    network = network.eval()
    clean = network(images).detach()
    x = ball.project(images + ball.random(images, attack.eps, draw), images, attack.eps)
    for _ in range(attack.steps):
        leaf = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(method.inner(network(leaf), clean, batch.labels).sum(), leaf)
        x = ball.project(x + attack.step * ball.direction(gradient), images, attack.eps)
    network.train()
    return x.detach()


def test_a_view_follows_the_original_and_is_frozen():
    original = model()
    seen = view(original)
    assert original.training
    assert not any(module.training for module in seen.modules())
    assert not any(parameter.requires_grad for parameter in seen.parameters())
    assert all(parameter.requires_grad for parameter in original.parameters())
    with torch.no_grad():
        for value in (*original.parameters(), *original.buffers()):
            value.add_(1)
    for (name, one), other in zip(original.state_dict().items(), seen.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
        assert one.data_ptr() == other.data_ptr()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("method", ["at", "trades"])
def test_the_attack_is_the_plain_one_step_for_step(method, norm):
    network, settings = model(), AttackConfig(norm=norm, eps=0.3, step=0.1, steps=4)
    plain = ascend(METHODS[method], network, digits(), settings, generator(0, "inner"))
    attack = InnerAttack(view(network), METHODS[method].inner, settings, "fp32", recorded=False)
    found = attack(digits().images, digits().labels, generator(0, "inner"))
    torch.testing.assert_close(found, plain)
    delta = (found - digits().images).flatten(1)
    assert (delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)).max() <= 0.3 + 1e-6
    assert 0 <= found.min() <= found.max() <= 1
    assert all(parameter.grad is None for parameter in network.parameters())
    assert network.training


def test_a_compiled_view_gives_the_same_attack():
    network, settings = model(), AttackConfig(eps=0.3, step=0.1, steps=2)

    def compiler(module, **options):
        return torch.compile(module, backend="aot_eager", **options)

    plain, compiled = (
        InnerAttack(view(network, one), METHODS["trades"].inner, settings, "fp32", recorded=False)(
            digits().images, digits().labels, generator(0, "inner")
        )
        for one in (None, compiler)
    )
    torch.testing.assert_close(compiled, plain)

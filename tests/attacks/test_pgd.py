"""FGSM and PGD on a trained classifier, and step by step."""

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binomtest

from twoprong.attacks import FGSM, PGD
from twoprong.attacks.bpda import BPDA
from twoprong.attacks.target import Plain
from twoprong.seeds import generator


def loss(model, images, labels):
    return F.cross_entropy(model(images), labels, reduction="none")


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.5)])
def test_pgd_is_stronger_than_fgsm_is_stronger_than_nothing(digits_model, norm, eps):
    """On 400 test digits. Of those that two of them treat differently, more fall to the stronger, beyond chance (1 %)."""
    model, test = digits_model
    wrong = model(test.images).argmax(1) != test.labels
    one = FGSM(eps=eps, norm=norm)(model, test.images, test.labels)
    many = PGD(eps=eps, norm=norm, step=eps / 8, steps=20)(model, test.images, test.labels, generator(0, "pgd"))
    assert wrong.double().mean() < 0.1
    for weaker, stronger in ((wrong, one.success), (one.success, many.success)):
        gained, lost = int((stronger & ~weaker).sum()), int((weaker & ~stronger).sum())
        assert binomtest(gained, gained + lost, alternative="greater").pvalue < 0.01
    losses = [loss(model, images, test.labels).mean() for images in (test.images, one.images, many.images)]
    assert losses[0] < losses[1] < losses[2]


def test_more_steps_are_stronger_and_reach_the_edge(digits_model):
    model, test = digits_model
    losses = []
    for steps in (1, 4, 16):
        attack = PGD(eps=0.1, step=0.02, steps=steps, random_start=False)
        found = attack(model, test.images, test.labels).images
        losses.append(loss(model, found, test.labels).mean().item())
        assert (found - test.images).abs().max().item() == pytest.approx(min(0.1, 0.02 * steps), abs=1e-6)
    assert losses == sorted(losses)


def test_fgsm_is_one_sign_step_up_the_loss(build_model, batch):
    model, (images, labels) = build_model(dtype=torch.float64), batch(6, dtype=torch.float64)
    leaf = images.clone().requires_grad_()
    loss(model, leaf, labels).sum().backward()
    expected = (images + 0.05 * leaf.grad.sign()).clamp(0, 1)
    assert torch.allclose(FGSM(eps=0.05)(model, images, labels).images, expected, atol=1e-12)
    unit = leaf.grad / leaf.grad.flatten(1).norm(dim=1)[:, None, None, None]
    expected = (images + 0.3 * unit).clamp(0, 1)
    assert torch.allclose(FGSM(eps=0.3, norm="l2")(model, images, labels).images, expected, atol=1e-12)


def test_pgd_is_the_loop_written_out(build_model, batch):
    model, (images, labels) = build_model(dtype=torch.float64), batch(6, dtype=torch.float64)
    noise = torch.empty_like(images).uniform_(-0.1, 0.1, generator=generator(5, "start"))
    x = (images + noise).clamp(0, 1)
    for _ in range(4):
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(model, leaf, labels).sum(), leaf)
        x = (images + (x + 0.04 * slope.sign() - images).clamp(-0.1, 0.1)).clamp(0, 1)
    found = PGD(eps=0.1, step=0.04, steps=4)(model, images, labels, generator(5, "start")).images
    assert torch.allclose(found, x, atol=1e-12)


def test_the_random_start_is_what_the_generator_decides(build_model, batch):
    model, (images, labels) = build_model(), batch(6)
    attack = PGD(eps=0.1, step=0.01, steps=1)
    first, other = (attack(model, images, labels, generator(seed, "start")).images for seed in (0, 1))
    assert not torch.equal(first, other)
    fixed = PGD(eps=0.1, step=0.01, steps=1, random_start=False)
    first, other = (fixed(model, images, labels, generator(seed, "start")).images for seed in (0, 1))
    assert torch.equal(first, other)
    assert (first - images).abs().max() <= 0.01 + 1e-6


@pytest.mark.parametrize("coupled", [False, True])
def test_the_best_iterate_is_kept_not_the_last(coupled):
    """Steps of 0.05 over a hump at 0.53 that is fooled within 0.025: across at the first step, back again at the second."""
    target = Plain(lambda x: torch.stack([0 * x[:, 0, 0, 0], 0.025**2 - (x[:, 0, 0, 0] - 0.53) ** 2], 1))
    target.coupled = coupled
    images, labels = torch.full((3, 1, 2, 2), 0.5), torch.zeros(3, dtype=torch.long)
    result = PGD(eps=0.1, step=0.05, steps=2, random_start=False)(target, images, labels)
    assert result.success.all()
    assert torch.allclose(result.images[:, 0, 0, 0], torch.tensor(0.55))


@pytest.mark.parametrize("attack", [PGD, BPDA])
def test_an_iterate_that_had_luck_is_not_kept(lucky, attack):
    """The first is scored as if it were across; scored anew, the last beats it."""
    images, labels = torch.full((3, 1, 2, 2), 0.5), torch.zeros(3, dtype=torch.long)
    result = attack(eps=0.1, step=0.05, steps=2, draws=1, random_start=False)(lucky, images, labels, generator(0))
    assert torch.allclose(result.images, images + 0.1)

import math

import pytest
import torch

from twoprong.attacks.noise import Noise
from twoprong.attacks.pgd import PGD
from twoprong.seeds import generator

GREY = torch.full((200, 1, 8, 8), 0.5)  # far from 0 and 1, where nothing is cut off


def perturbation(norm, eps, model=lambda x: x.flatten(1), images=GREY, seed=0):
    labels = torch.zeros(len(images), dtype=torch.long)
    return Noise(eps=eps, norm=norm)(model, images, labels, generator(seed, "noise")).images - images


def test_linf_noise_is_a_random_sign_times_the_budget():
    delta = perturbation("linf", 0.1)
    assert torch.allclose(delta.abs(), torch.tensor(0.1))
    share = (delta > 0).double().mean().item()
    assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(delta.numel())  # four standard deviations
    assert len({tuple(row.tolist()) for row in delta.flatten(1)}) == len(GREY)


def test_l2_noise_is_a_random_direction_of_the_budgets_length():
    delta = perturbation("l2", 0.8).flatten(1)
    assert torch.allclose(delta.norm(dim=1), torch.tensor(0.8), atol=1e-5)
    unit = delta.double() / delta.double().norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T)[*torch.triu_indices(len(unit), len(unit), 1)]
    # Directions in 64 dimensions: products of mean 0 and variance 1/64. The mean of 19,900 of them, four deviations wide.
    assert abs(cosines.mean()) < 4 / math.sqrt(64 * len(cosines))
    assert cosines.square().mean().item() == pytest.approx(1 / 64, rel=0.05)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.8)])
def test_it_is_one_draw_chosen_by_nothing(norm, eps):
    """Another model, another noise? No; only the generator decides, and the model is asked once, for the outcome."""
    first, other = (perturbation(norm, eps, model) for model in (lambda x: x.flatten(1), lambda x: -x.flatten(1)[:, :5]))
    assert torch.equal(first, other)
    assert not torch.equal(first, perturbation(norm, eps, seed=1))
    result = Noise(eps=eps, norm=norm)(lambda x: x.flatten(1), GREY, torch.zeros(len(GREY), dtype=torch.long))
    assert result.queries == len(GREY)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.5)])
def test_it_does_little_where_pgd_does_much(digits_model, norm, eps):
    model, test = digits_model
    clean = (model(test.images).argmax(1) == test.labels).double().mean().item()
    noise = Noise(eps=eps, norm=norm)(model, test.images, test.labels, generator(0, "noise")).accuracy
    pgd = PGD(eps=eps, norm=norm)(model, test.images, test.labels, generator(0, "pgd")).accuracy
    assert clean - noise < (clean - pgd) / 4

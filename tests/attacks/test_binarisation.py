"""Would an attack find what is there? Problems with a known answer inside the ball (after Zimmermann et al. 2022).

Around each image a two-class problem is made on a network's frozen features: random points of a smaller ball are one class,
random points on the edge of the ε-ball the other, and a linear readout separates them. So an adversarial image exists, and
an attack that misses it is broken. Every image has its own readout; the problems are solved as one batch.
"""

import pytest
import torch
from torch import nn

from twoprong.attacks import ATTACKS, NORMS, PGD
from twoprong.attacks.cw import CW
from twoprong.attacks.noise import Noise
from twoprong.models.features import Features
from twoprong.seeds import generator

TASKS, INNER, EDGE = 64, 100, 1
RIDGE = 0.1  # how smooth the readouts are; at 0.01 and less they fit the noise of 100 points, and PGD misses one in ten
HARD = 0.75  # where between the two classes the boundary lies: near the known answer
EPS = {"linf": 0.03, "l2": 0.2}
SOLVED = 0.95
ITERATED = {"bim", "pgd", "pgd-eot", "mma", "apgd-ce", "apgd-dlr", "apgd-t", "fab-t"}  # FGSM's one step need not do


class Readouts(nn.Module):
    """Class 1 where w_i·features(x) > b_i, by the readout of the image that x lies nearest to: far further than ε apart,
    they cannot be mistaken, whatever part of the batch an attack asks about."""

    def __init__(self, features, images, weights, offsets):
        super().__init__()
        self.features, self.images, self.weights, self.offsets = features, images, weights, offsets

    def forward(self, images):
        nearest = torch.cdist(images.detach().flatten(1), self.images.flatten(1)).argmin(1)
        scores = (self.features(images) * self.weights[nearest]).sum(1) - self.offsets[nearest]
        return torch.stack([-scores, scores], 1)


def edge(images, norm, source):
    """Random points of the full distance ε: corners of the linf ball, the surface of the l2 ball."""
    ray = torch.empty_like(images).normal_(generator=source)
    return NORMS[norm].project(images + EPS[norm] * NORMS[norm].direction(ray), images, EPS[norm])


def inside(images, norm, source):
    """Random points of the ball of half the radius."""
    return (images + NORMS[norm].random(images, EPS[norm] / 2, source)).clamp(0, 1)


def problem(model, images, norm):
    """One readout per image, by ridge regression on its points, and the edge points it was made for: (tasks, edge, …)."""
    source = generator(0, "binarisation", norm)
    deep = Features(model)

    def features(x):
        return deep(x)[1]

    inner = torch.stack([images] + [inside(images, norm, source) for _ in range(INNER - 1)], 1)
    outer = torch.stack([edge(images, norm, source) for _ in range(EDGE)], 1)
    rows = features(torch.cat([inner, outer], 1).flatten(0, 1)).view(len(images), INNER + EDGE, -1).double()
    truth = torch.cat([-torch.ones(INNER), torch.ones(EDGE)]).double().expand(len(images), -1)
    centred = rows - rows.mean(1, keepdim=True)
    gram = centred @ centred.mT
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(INNER + EDGE)
    weights = (centred.mT @ torch.linalg.solve(gram + ridge, truth[..., None])).squeeze(-1)
    scores = (rows * weights[:, None]).sum(-1)
    offsets = torch.lerp(scores[:, :INNER].amax(1), scores[:, INNER:].amin(1), HARD)
    return Readouts(features, images, weights.float(), offsets.float()), inner, outer


@pytest.fixture(scope="module")
def made(digits_model):
    model, test = digits_model
    images = test.images[:TASKS]
    return {norm: (norm, images, problem(model, images, norm)) for norm in NORMS}


@pytest.fixture(params=sorted(NORMS))
def problems(request, made):
    return made[request.param]


LABELS = torch.zeros(TASKS, dtype=torch.long)


def share_solved(attack, target, images):
    return attack(target, images, LABELS, generator(0, "attack")).success.double().mean().item()


def test_every_problem_has_its_known_answer(problems):
    """All inner points, the image among them, are class 0; every edge point is class 1 and inside the ball."""
    norm, images, (target, inner, outer) = problems
    for k in range(INNER):
        assert (target(inner[:, k]).argmax(1) == 0).all()
    for k in range(EDGE):
        assert (target(outer[:, k]).argmax(1) == 1).all()
        assert NORMS[norm].size(outer[:, k] - images).max() <= EPS[norm] + 1e-6
    assert torch.equal(inner[:, 0], images)


def test_chance_does_not_solve_them(problems):
    """Another random point of the edge is not enough: what the attacks find, they find by looking."""
    norm, images, (target, _, _) = problems
    assert share_solved(Noise(eps=EPS[norm], norm=norm), target, images) < 0.2


@pytest.mark.parametrize("name", sorted(ITERATED & set(ATTACKS)))
def test_every_iterated_attack_solves_them(problems, name):
    norm, images, (target, _, _) = problems
    assert share_solved(ATTACKS[name](eps=EPS[norm], norm=norm), target, images) >= SOLVED


def test_cw_solves_them_in_its_norm(made):
    norm, images, (target, _, _) = made["l2"]
    assert share_solved(CW(eps=EPS[norm], norm=norm, steps=60), target, images) >= SOLVED


def test_crippled_attacks_fail(problems):
    """Steps too small, and gradients that a defence (or a bug) has cut: the test notices both."""
    norm, images, (target, _, _) = problems
    timid = PGD(eps=EPS[norm], norm=norm, steps=1, step=EPS[norm] / 100, random_start=False)
    assert share_solved(timid, target, images) < 0.5
    blind = PGD(eps=EPS[norm], norm=norm)
    assert share_solved(blind, lambda x: target(x.detach()) + 0 * x.sum(), images) < 0.5

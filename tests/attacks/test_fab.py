import pytest
import torch
from scipy.optimize import linprog, minimize

from twoprong.attacks.fab import FABT, shortest_way
from twoprong.attacks.norms import NORMS
from twoprong.attacks.target import Plain, PlainOutcome
from twoprong.seeds import generator

EPS = {"linf": 0.13, "l2": 0.9}


def problem(seed, pixels=12):
    """A random image (some of it black or white), slope, and a rise that a random δ inside [0,1] really achieves."""
    source = generator(seed, "fab")
    x = (torch.rand(1, 1, 1, pixels, generator=source, dtype=torch.float64) * 1.6 - 0.3).clamp(0, 1)
    slope = torch.randn(1, 1, 1, pixels, generator=source, dtype=torch.float64) * 10 ** (seed % 5 - 2.0)
    slope[..., 0] = 0
    other = x + (torch.rand(x.shape, generator=source, dtype=torch.float64) - x) * (0.2 + 0.8 * (seed % 2))
    return x, slope, (slope * (other - x)).flatten(1).sum(1)


def smallest_linf(x, slope, rise):
    """min s subject to slope·δ = rise, |δ_i| ≤ s, 0 ≤ x + δ ≤ 1, as a linear programme."""
    n = x.size
    rows = [[*(sign * (i == j) for j in range(n)), -1.0] for i in range(n) for sign in (1.0, -1.0)]
    limits = [(-value, 1 - value) for value in x] + [(0, None)]
    scale = abs(slope).max()
    return linprog(
        [0.0] * n + [1.0], A_ub=rows, b_ub=[0.0] * 2 * n, A_eq=[[*(slope / scale), 0.0]], b_eq=[rise / scale], bounds=limits
    ).fun


def smallest_l2(x, slope, rise):
    scale = abs(slope).max()
    found = minimize(
        lambda delta: (delta**2).sum(),
        0 * x,
        jac=lambda delta: 2 * delta,
        bounds=list(zip(-x, 1 - x, strict=True)),
        constraints={
            "type": "eq",
            "fun": lambda delta: slope @ delta / scale - rise / scale,
            "jac": lambda _: slope / scale,
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.fun**0.5


@pytest.mark.parametrize(("norm", "solve"), [("linf", smallest_linf), ("l2", smallest_l2)])
def test_the_shortest_way_is_what_a_solver_finds(norm, solve):
    problems = [problem(seed) for seed in range(20)]
    x, slope, rise = (torch.cat(parts) for parts in zip(*problems, strict=True))
    delta = shortest_way(x, slope, rise, norm)
    sizes = NORMS[norm].size(delta)
    assert torch.allclose((slope * delta).flatten(1).sum(1), rise, rtol=1e-9, atol=1e-9)
    assert (x + delta).min() >= -1e-12
    assert (x + delta).max() <= 1 + 1e-12
    for i in range(20):
        expected = solve(x[i].flatten().numpy(), slope[i].flatten().numpy(), rise[i].item())
        assert sizes[i].item() == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_out_of_reach_and_out_of_slope(norm):
    """Too much to ask moves every pixel that has a slope all the way; no slope moves nothing."""
    x = torch.tensor([0.25, 0.5, 1.0, 0.0]).view(1, 1, 2, 2)
    slope = torch.tensor([2.0, -1.0, 3.0, 0.0]).view(1, 1, 2, 2)
    assert shortest_way(x, slope, torch.tensor([100.0]), norm).flatten().tolist() == [0.75, -0.5, 0, 0]
    assert shortest_way(x, slope, torch.tensor([-100.0]), norm).flatten().tolist() == [-0.25, 0.5, -1.0, 0]
    assert shortest_way(x, 0 * slope, torch.tensor([1.0]), norm).abs().max() == 0
    assert shortest_way(x, slope, torch.tensor([0.0]), norm).abs().max() == 0
    assert shortest_way(x, slope * 1e-30, torch.tensor([1.0]), norm).isfinite().all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_on_a_linear_classifier_it_is_exact(norm):
    """There the nearest point across is known: success is what lies within ε, to 2 % (5 % overshoot, bisected thrice)."""
    weight = torch.randn(16, generator=generator(0, "weight"))
    images = 0.3 + 0.4 * torch.rand(60, 1, 4, 4, generator=generator(0, "images"))
    value = (images.flatten(1) - 0.5) @ weight
    distance = value.abs() / (weight.abs().sum() if norm == "linf" else weight.norm())

    def model(x):
        value = (x.flatten(1) - 0.5) @ weight
        return torch.stack([value, -value], 1)

    eps = distance.median().item()
    result = FABT(eps=eps, norm=norm, steps=10)(model, images, (value < 0).long())
    assert result.success[distance < 0.98 * eps].all()
    assert not result.success[distance > eps].any()
    assert torch.equal(result.images[~result.success], images[~result.success])
    assert result.images[result.success].sub(images[result.success]).abs().flatten(1).amax(1).min() > 0


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_fools_a_trained_classifier(digits_model, norm):
    model, test = digits_model
    part = test[:60]
    clean = (model(part.images).argmax(1) == part.labels).double().mean().item()
    result = FABT(eps=EPS[norm], norm=norm, steps=15, targets=3)(model, part.images, part.labels, generator(0))
    assert result.accuracy < clean / 2
    still_clean = NORMS[norm].size(result.images - part.images) == 0
    assert still_clean[~result.success].all()


def test_restarts_find_no_less(digits_model):
    model, test = digits_model
    part = test[:40]
    once, thrice = (
        FABT(eps=0.07, steps=6, targets=2, restarts=restarts)(model, part.images, part.labels, generator(0))
        for restarts in (1, 3)
    )
    assert not (once.success & ~thrice.success).any()


@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes_and_no_gradient(build_model, batch, classes):
    images, labels = batch(5, classes=classes)
    assert FABT(eps=0.1, steps=4)(build_model(classes=classes), images, labels).images.isfinite().all()
    flat = FABT(eps=0.1, steps=4)(lambda x: 0 * x.flatten(1)[:, :classes], images, labels)
    assert torch.equal(flat.images, images)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_behind_a_batch_test_the_batch_stays_whole(build_model, batch, norm):
    sizes = []

    class Together(Plain):
        coupled = True
        routes = ("passing", "flagged")

        def logits(self, images, route=None, draws=1, generator=None):
            sizes.append(len(images))
            logits = self.model(images)
            return (logits + 0.5 * logits.mean(0))[None]

        def decide(self, images, generator=None):
            return PlainOutcome(self.logits(images)[0].detach())

    model, (images, _) = build_model(), batch(10)
    target = Together(model)
    labels = target.logits(images)[0].argmax(1)
    result = FABT(eps=EPS[norm], norm=norm, steps=10)(target, images, labels, generator(0))
    assert set(sizes) == {10}
    assert result.success.sum() >= 3

import pytest
import torch
from scipy.stats import kstest

from twoprong.attacks import NORMS
from twoprong.seeds import generator

EPS = {"linf": 0.1, "l2": 0.8}


@pytest.fixture(params=sorted(NORMS))
def norm(request):
    return NORMS[request.param]


def images(n, *name, channels=3):
    return torch.rand(n, channels, 5, 5, generator=generator(0, *name))


def test_the_registry_names_its_norms():
    assert set(NORMS) == {"linf", "l2"}
    assert all(norm.name == name for name, norm in NORMS.items())


def test_sizes_are_those_of_numpy_like_loops():
    delta = images(4, "delta") - 0.5
    rows = [image.flatten().tolist() for image in delta]
    assert NORMS["linf"].size(delta).tolist() == pytest.approx([max(map(abs, row)) for row in rows])
    assert NORMS["l2"].size(delta).tolist() == pytest.approx([sum(v * v for v in row) ** 0.5 for row in rows])


def test_project_ends_in_ball_and_range_and_twice_is_once(norm):
    eps = EPS[norm.name]
    origin = images(6, "origin").round(decimals=1)  # some pixels at 0 and 1
    far = origin + 3 * torch.randn(origin.shape, generator=generator(0, "far"))
    near = norm.project(far, origin, eps)
    assert norm.size(near - origin).max() <= eps + 1e-6
    assert norm.size(near - origin).min() > 0.3 * eps  # pushed back to the edge, not to the middle
    assert near.min() >= 0
    assert near.max() <= 1
    assert torch.allclose(norm.project(near, origin, eps), near, atol=1e-6)


def test_project_leaves_what_is_inside(norm):
    origin = images(3, "origin") * 0.5 + 0.25
    inside = origin + norm.random(origin, 0.2, generator(0, "inside"))
    assert torch.allclose(norm.project(inside, origin, 0.2), inside, atol=1e-6)


def test_shrink_gives_the_nearest_point_of_the_ball(norm):
    """Of every image: no point drawn from the ball is nearer (in the Euclidean sense) to where it came from."""
    delta = torch.randn(3, 1, 2, 2, generator=generator(0, "delta")) * torch.tensor([0.2, 2, 9])[:, None, None, None]
    shrunk = norm.shrink(delta, 0.5)
    inside = norm.random(torch.zeros(2000, 1, 2, 2), 0.5, generator(0, "inside"))
    nearest = torch.cdist(inside.flatten(1), delta.flatten(1)).amin(0)
    assert (nearest >= (shrunk - delta).flatten(1).norm(dim=1) - 1e-6).all()


def test_an_image_is_brought_to_the_edge_of_its_own_ball_whatever_is_beside_it(norm):
    """Inside, just outside and far outside, in one batch: one norm over the batch would pull all of them too far in."""
    eps, origin = EPS[norm.name], torch.full((3, 1, 4, 4), 0.5)
    ray = torch.ones(3, 1, 4, 4)
    sizes = torch.tensor([0.5, 1.2, 40.0]) * eps
    far = origin + ray * (sizes / norm.size(ray))[:, None, None, None]
    near = norm.project(far, origin, eps)
    assert norm.size(near - origin).tolist() == pytest.approx([0.5 * eps, eps, eps], rel=1e-5)
    for i in range(3):
        assert torch.allclose(near[i : i + 1], norm.project(far[i : i + 1], origin[i : i + 1], eps), atol=1e-6)


def test_random_starts_fill_the_ball(norm):
    """linf: uniform, so (size / eps) to the power of the dimension is; l2: of uniform length. All sides are met."""
    shape, d = (2000, 1, 2, 3), {"linf": 6, "l2": 1}[norm.name]
    drawn = norm.random(torch.zeros(shape), 0.3, generator(0, "uniform"))
    assert drawn.shape == shape
    assert norm.size(drawn).max() <= 0.3 + 1e-6
    assert kstest(((norm.size(drawn) / 0.3) ** d).numpy(), "uniform").pvalue > 0.01
    assert drawn.mean(0).abs().max() < 4 * 0.3 / 2000**0.5


def test_random_follows_its_generator(norm):
    first, again, other = (norm.random(images(2, "r"), 0.1, generator(seed, "r")) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("scale", [1e-30, 1e-13, 1.0, 1e25])
def test_direction_is_a_unit_step_uphill_whatever_the_gradients_size(norm, scale):
    """A confident model's gradients are tiny, and an attack that stops there would flatter it."""
    gradient = torch.randn(4, 3, 5, 5, generator=generator(0, "gradient"))
    step = norm.direction(gradient * scale)
    assert norm.size(step).tolist() == pytest.approx([1] * 4, abs=1e-6)
    rise = (step * gradient).flatten(1).sum(1)
    assert (rise > 0).all()
    other = torch.randn(500, 3, 5, 5, generator=generator(0, "other"))
    other = other / norm.size(other)[:, None, None, None]
    assert rise[0] >= (other * gradient[0]).flatten(1).sum(1).max()  # no unit step rises faster


def test_direction_works_image_by_image(norm):
    gradient = torch.randn(3, 1, 4, 4, generator=generator(0, "gradient"))
    gradient[1] *= 1e-4
    together = norm.direction(gradient)
    for i in range(3):
        assert torch.allclose(together[i : i + 1], norm.direction(gradient[i : i + 1]))


def test_a_zero_gradient_gives_no_step(norm):
    assert torch.equal(norm.direction(torch.zeros(2, 1, 4, 4)), torch.zeros(2, 1, 4, 4))


def test_a_zero_perturbation_stays_zero(norm):
    assert torch.equal(norm.shrink(torch.zeros(2, 1, 4, 4), 0.1), torch.zeros(2, 1, 4, 4))

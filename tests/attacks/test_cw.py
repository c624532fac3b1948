import pytest
import torch
from torch import nn

from twoprong.attacks.cw import BOX, CW, in_box
from twoprong.attacks.losses import margin
from twoprong.attacks.norms import NORMS
from twoprong.attacks.target import Plain
from twoprong.errors import InputError
from twoprong.seeds import generator

FREE = 100.0  # a ball that holds every image


def right_batch(model, batch, n=12, dtype=torch.float64):
    """Images that the model gets right, away from black and white."""
    images, _ = batch(n, dtype=dtype)
    images = 0.2 + 0.6 * images
    return images, model(images).argmax(1)


def sizes(found, images):
    return (found - images).flatten(1).norm(dim=1)


def test_the_change_of_variable_starts_at_the_image_and_stays_in_range():
    images = torch.linspace(0, 1, 64, dtype=torch.float64).view(1, 1, 8, 8)
    w = torch.atanh(BOX * (2 * images - 1)).requires_grad_()
    assert torch.allclose(in_box(w), images, atol=1e-12)
    far = in_box(torch.tensor([-50.0, -3.0, 3.0, 50.0]))
    assert far.tolist() == [0, 0, 1, 1]
    (slope,) = torch.autograd.grad(in_box(w).sum(), w)
    assert slope.min() > 0.05  # black and white pixels can leave their places


def test_on_a_linear_model_it_finds_the_known_distance(batch):
    """Two classes and z = wx + b: the nearest point across the boundary lies at margin / |w|."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double()
    images, labels = right_batch(model, batch)
    with torch.no_grad():
        model[1].weight *= 0.3 / margin(model(images), labels).abs().mean()
    labels = model(images).argmax(1)
    normal = (model[1].weight[0] - model[1].weight[1]).norm()
    known = -margin(model(images), labels) / normal
    found = CW(eps=FREE, norm="l2", steps=200, searches=6)(model, images, labels)
    assert found.success.all()
    reached = sizes(found.images, images)
    assert (reached >= known - 1e-9).all()  # nothing is nearer, or the test is wrong
    assert (reached <= 1.1 * known + 0.01).all()


def test_more_searches_never_end_further_away(build_model, batch):
    model = build_model(dtype=torch.float64)
    images, labels = right_batch(model, batch)
    few, many = (CW(eps=FREE, norm="l2", steps=60, searches=k)(model, images, labels) for k in (2, 6))
    assert many.success[few.success].all()
    both = few.success & many.success
    assert both.sum() > 6
    assert (sizes(many.images, images)[both] <= sizes(few.images, images)[both]).all()
    assert sizes(many.images, images)[both].mean() < sizes(few.images, images)[both].mean()


def test_images_already_misclassified_stay_as_they_are(build_model, batch):
    model = build_model()
    images, labels = right_batch(model, batch, dtype=torch.float32)
    labels[:5] = (labels[:5] + 1) % 4
    found = CW(eps=FREE, norm="l2", steps=20)(model, images, labels)
    assert found.success[:5].all()
    assert sizes(found.images, images)[:5].max() < 1e-5


@pytest.mark.parametrize("norm", sorted(NORMS))
def test_what_lies_outside_the_ball_is_projected(build_model, batch, norm):
    model = build_model(dtype=torch.float64)
    images, labels = right_batch(model, batch)
    free = CW(eps=FREE if norm == "l2" else 1.0, norm=norm, steps=60)(model, images, labels)
    reach = NORMS[norm].size(free.images - images)
    eps = reach.median().item()
    bounded = CW(eps=eps, norm=norm, steps=60)(model, images, labels)
    assert torch.allclose(bounded.images, NORMS[norm].project(free.images, images, eps), atol=1e-12)
    inside = free.success & (reach <= eps)
    assert 0 < inside.sum() < free.success.sum()
    assert bounded.success[inside].all()


def test_where_nothing_crosses_the_largest_margin_comes_back(batch):
    """A model that always says class 0, more so in the dark: the attack can only brighten, and does."""
    images, _ = batch(6)
    images = 0.2 + 0.3 * images
    labels = torch.zeros(6, dtype=torch.long)

    def model(x):
        return torch.stack([20 - x.flatten(1).mean(1), torch.zeros(len(x))], 1)

    found = CW(eps=0.5, norm="l2", steps=50)(model, images, labels)
    assert not found.success.any()
    assert found.images.isfinite().all()
    assert (found.images.mean((1, 2, 3)) > images.mean((1, 2, 3)) + 0.02).all()
    assert sizes(found.images, images).max() <= 0.5 + 1e-6


def test_black_and_white_images_and_flat_models_give_finite_images(batch):
    images = torch.cat([torch.zeros(2, 1, 8, 8), torch.ones(2, 1, 8, 8), batch(2)[0]])
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    for model in (lambda x: 0 * x.flatten(1)[:, :4], lambda x: 1e4 * x.flatten(1)[:, :4]):
        found = CW(eps=FREE, norm="l2", steps=15)(model, images, labels).images
        assert found.isfinite().all()
        assert 0 <= found.min() <= found.max() <= 1


def test_kappa_asks_for_that_margin(build_model, batch):
    model = build_model(dtype=torch.float64)
    images, labels = right_batch(model, batch)
    near, sure = (CW(eps=FREE, norm="l2", steps=80, kappa=kappa)(model, images, labels) for kappa in (0.0, 0.2))
    across = margin(model(sure.images), labels)
    assert (across >= 0.2).sum() > 6
    both = near.success & (across >= 0.2)
    assert (sizes(sure.images, images)[both] > sizes(near.images, images)[both]).all()


class Together(Plain):
    """A classifier of which a caller may not take a batch apart, and which remembers the batches it saw."""

    coupled = True
    routes = ("passing", "flagged")

    def __init__(self, model):
        super().__init__(model)
        self.seen = []

    def logits(self, images, route=None, draws=1, generator=None):
        self.seen.append(images.detach().clone())
        return super().logits(images, route, draws, generator)


def test_a_coupled_batch_is_kept_whole(build_model, batch):
    """What comes back was one batch that the target saw, and of those the best: most across, then the nearest."""
    model = build_model(dtype=torch.float64)
    images, labels = right_batch(model, batch)
    target = Together(model)
    found = CW(eps=FREE, norm="l2", steps=40, searches=4)(target, images, labels)
    assert len(target.seen) == 160
    assert any(torch.equal(found.images, x) for x in target.seen)
    across = [int((margin(model(x), labels) > 0).sum()) for x in target.seen]
    assert int(found.success.sum()) == max(across)
    rivals = [sizes(x, images).mean().item() for x, count in zip(target.seen, across, strict=True) if count == len(images)]
    if rivals:
        assert sizes(found.images, images).mean().item() == pytest.approx(min(rivals))


def test_a_coupled_batch_counts_images_across_inside_the_ball(build_model, batch):
    model = build_model(dtype=torch.float64)
    images, labels = right_batch(model, batch)
    reach = sizes(CW(eps=FREE, norm="l2", steps=40, searches=4)(model, images, labels).images, images)
    eps = reach.median().item()
    target = Together(model)
    found = CW(eps=eps, norm="l2", steps=40, searches=4)(target, images, labels)
    inside = [int(((margin(model(x), labels) > 0) & (sizes(x, images) < eps)).sum()) for x in target.seen]
    assert max(inside) > 0
    assert int(found.success.sum()) >= max(inside)


def test_it_draws_nothing_and_asks_nothing_of_the_models_parameters(build_model, batch):
    model, (images, labels) = build_model(), batch(4)
    attack = CW(eps=0.5, norm="l2", steps=10)
    first, other = (attack(model, images, labels, generator(seed)).images for seed in (0, 1))
    assert torch.equal(first, other)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("setting", [{"c": 0.0}, {"lr": 0.0}, {"c": -1.0}, {"kappa": -0.1}, {"steps": 0}, {"searches": 0}])
def test_nonsensical_settings_are_refused(setting):
    (name,) = setting
    with pytest.raises(InputError, match=rf"^{name}: expected"):
        CW(**setting)


def test_it_fools_a_trained_classifier(digits_model):
    model, test = digits_model
    part = test[:60]
    result = CW(eps=1.0, norm="l2", c=1.0, lr=0.02, steps=60, searches=3)(model, part.images, part.labels)
    assert result.accuracy < 0.1
    assert sizes(result.images, part.images).max() <= 1 + 1e-5

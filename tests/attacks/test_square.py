import pytest
import torch

from twoprong.attacks.norms import NORMS
from twoprong.attacks.square import Square, bump, l2_square, linf_square, opposed_bumps, share, stripes, tiles
from twoprong.attacks.target import Plain, PlainOutcome
from twoprong.seeds import generator

EPS = {"linf": 0.1, "l2": 0.9}
SHAPES = [(5, 1, 8, 8), (5, 3, 32, 32), (5, 1, 4, 6)]


def test_the_share_of_pixels_falls_by_the_papers_schedule():
    """Out of 10,000: p up to 10, p/2 up to 50, p/4 up to 200, … p/512 after 8,000."""
    by_hand = {
        0: 1,
        10: 1,
        11: 2,
        50: 2,
        51: 4,
        200: 4,
        500: 8,
        1000: 16,
        2000: 32,
        4000: 64,
        6000: 128,
        8000: 256,
        8001: 512,
    }
    assert {step: 0.8 / share(step, 10_000, 0.8) for step in by_hand} == by_hand
    assert share(500, 1000, 0.8) == share(5000, 10_000, 0.8)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_linf_proposal_is_one_square_of_eps(shape):
    source = generator(0, "square")
    before = stripes(torch.zeros(shape), 0.1, source)
    assert torch.equal(before.abs(), torch.full(shape, 0.1))
    assert torch.equal(before, before[:, :, :1].expand(shape))
    after = linf_square(0 * before, 0.2, 0.1, source)
    side = min(round((0.2 * shape[2] * shape[3]) ** 0.5), *shape[2:])
    for image in after.abs().sum(1):
        rows, columns = image.nonzero().T
        assert len(rows) == side**2
        assert rows.max() - rows.min() == columns.max() - columns.min() == side - 1
    assert set(after.flatten().tolist()) <= {0, torch.tensor(0.1).item(), -torch.tensor(0.1).item()}
    places = (after != 0).any(1)
    assert not torch.equal(places, places[:1].expand_as(places))  # every image has its own place


@pytest.mark.parametrize("shape", SHAPES)
def test_an_l2_proposal_spends_the_whole_budget(shape):
    source = generator(0, "square")
    delta = tiles(torch.zeros(shape), 0.7, source)
    for p in (0.8, 0.1, 0.001):
        changed = l2_square(delta, p, 0.7, source)
        assert torch.allclose(NORMS["l2"].size(changed), torch.full((5,), 0.7))
        assert (changed != delta).flatten(1).any(1).all()
        delta = changed
    assert torch.allclose(NORMS["l2"].size(l2_square(0 * delta, 0.1, 0.7, source)), torch.full((5,), 0.7))


def test_the_bumps_by_hand():
    """n = 1: 1/4 at the rim, 1/4 + 1 in the middle. n = 2: 1/9, 1/9 + 1/4, 1/9 + 1/4 + 1."""
    like = torch.zeros((), dtype=torch.float64)
    assert bump(3, 3, like).tolist() == [[0.25, 0.25, 0.25], [0.25, 1.25, 0.25], [0.25, 0.25, 0.25]]
    assert bump(5, 5, like)[2].tolist() == pytest.approx([1 / 9, 1 / 9 + 1 / 4, 1 / 9 + 5 / 4, 1 / 9 + 1 / 4, 1 / 9])
    pattern = opposed_bumps(5, like)
    assert (pattern[:2] > 0).all()
    assert (pattern[2:] < 0).all()
    assert pattern.norm().item() == pytest.approx(1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_needs_no_gradient_and_more_queries_help(digits_model, norm):
    model, test = digits_model
    part = test[:100]

    def opaque(x):
        assert not torch.is_grad_enabled()
        return model(x)

    accuracies = []
    for steps in (1, 150):
        result = Square(eps=EPS[norm], norm=norm, steps=steps)(opaque, part.images, part.labels, generator(0))
        assert NORMS[norm].size(result.images - part.images).max() <= EPS[norm] + 1e-6
        accuracies.append(result.accuracy)
    assert accuracies[1] < accuracies[0] - 0.1


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("shape", [(3, 1, 8, 8), (2, 3, 32, 32), (1, 1, 5, 7)])
def test_shapes(norm, shape):
    images = torch.rand(shape, generator=generator(0))
    labels = torch.zeros(shape[0], dtype=torch.long)

    def always_right(x):
        level = x.mean((1, 2, 3))
        return torch.stack([level + 9, -level], 1)

    result = Square(eps=EPS[norm], norm=norm, steps=20)(always_right, images, labels, generator(0))
    assert result.queries == shape[0] * (1 + 20 + 1)  # the images, the steps, the decision
    assert result.images.isfinite().all()
    assert not result.success.any()
    assert result.objective > -9 - 2 * images.mean().item()  # the margin rises as an image gets darker


def test_a_fooled_image_costs_nothing_more(build_model, batch):
    model, (images, _) = build_model(), batch(6)
    labels = (model(images).argmax(1) + 1) % 4
    result = Square(eps=0.1, steps=50)(model, images, labels, generator(0))
    assert torch.equal(result.images, images)
    assert result.queries == 12


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_behind_a_batch_test_a_batch_is_accepted_whole(build_model, batch, norm):
    offered = []

    class Together(Plain):
        coupled = True
        routes = ("passing", "flagged")

        def logits(self, images, route=None, draws=1, generator=None):
            offered.append(images)
            logits = self.model(images)
            return (logits + 0.5 * logits.mean(0))[None]

        def decide(self, images, generator=None):
            return PlainOutcome(self.logits(images)[0].detach())

    model, (images, _) = build_model(), batch(10)
    target = Together(model)
    labels = target.logits(images)[0].argmax(1)
    result = Square(eps=EPS[norm], norm=norm, steps=60)(target, images, labels, generator(0))
    ranks = [int((target.logits(x)[0].argmax(1) != labels).sum()) for x in offered[:-1]]
    assert {len(x) for x in offered} == {10}
    assert any(torch.allclose(result.images, x, atol=1e-6) for x in offered[:-1])
    assert int(result.success.sum()) == max(ranks)
    assert max(ranks) > ranks[2]  # better than the first pattern

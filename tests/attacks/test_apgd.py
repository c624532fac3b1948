import math
from itertools import pairwise

import pytest
import torch

from twoprong.attacks.apgd import APGD, APGDDLR, APGDT, Survivors, _Ascent, checkpoints, likeliest_wrong
from twoprong.attacks.losses import margin
from twoprong.attacks.target import Plain, PlainOutcome
from twoprong.errors import InputError
from twoprong.seeds import generator

EPS = {"linf": 0.1, "l2": 0.9}
KINDS = [APGD, APGDDLR, APGDT]


class Together(Plain):
    """A classifier behind a batch test: what a batch looks like on average shifts the logits of all its images."""

    coupled = True
    routes = ("passing", "flagged")

    def __init__(self, model):
        super().__init__(model)
        self.sizes = []

    def logits(self, images, route=None, draws=1, generator=None):
        self.sizes.append(len(images))
        logits = self.model(images)
        return (logits + 0.5 * logits.mean(0))[None]

    def decide(self, images, generator=None):
        return PlainOutcome(self.logits(images)[0].detach())


def test_checkpoints_by_hand():
    """p: 0.22, then + 0.19, 0.16, 0.13, 0.10, 0.07, and 0.06 from there on."""
    assert checkpoints(100) == [0, 22, 41, 57, 70, 80, 87, 93, 99, 100]
    assert checkpoints(10) == [0, 3, 5, 6, 7, 8, 9, 10]
    assert checkpoints(1) == [0, 1]


def project(x, origin, eps, norm):
    delta = x - origin
    delta = delta.clamp(-eps, eps) if norm == "linf" else delta * min(1, eps / max(delta.norm().item(), 1e-12))
    return (origin + delta).clamp(0, 1)


def loop_apgd(model, image, label, eps, norm, steps):
    """Algorithm 1 of the paper for one image; the iterate of the largest margin, looked for until a checkpoint is across."""

    def look(x):
        leaf = x.clone().requires_grad_()
        z = model(leaf[None])[0]
        loss = -z.log_softmax(0)[label]
        (slope,) = torch.autograd.grad(loss, leaf)
        others = torch.cat([z[:label], z[label + 1 :]])
        return loss.item(), slope.sign() if norm == "linf" else slope / slope.norm(), (others.max() - z[label]).item()

    seen = []
    eta, losses, xs = 2 * eps, [], [image]
    loss, direction, margin = look(image)
    losses.append(loss)
    seen.append((margin, image))
    if margin > 0:
        return image
    top, top_loss, top_direction = image, loss, direction
    marks, etas = [loss], [eta]
    previous = 0
    for k in range(steps):
        x = xs[-1]
        z = project(x + eta * direction, image, eps, norm)
        new = z if k == 0 else project(x + 0.75 * (z - x) + 0.25 * (x - xs[-2]), image, eps, norm)
        loss, direction, margin = look(new)
        xs.append(new)
        losses.append(loss)
        seen.append((margin, new))
        if loss > top_loss:
            top, top_loss, top_direction = new, loss, direction
        if k + 1 in checkpoints(steps):
            stretch = losses[previous : k + 2]
            rises = sum(b > a for a, b in pairwise(stretch))
            unchanged = etas[-1] == etas[max(len(etas) - 2, 0)] and marks[-1] == top_loss
            if rises < 0.75 * (k + 1 - previous) or unchanged:
                eta /= 2
                xs[-1], losses[-1], direction = top, top_loss, top_direction
            marks.append(top_loss)
            etas.append(eta)
            previous = k + 1
            if max(pair[0] for pair in seen) > 0:
                break
    return max(seen, key=lambda pair: pair[0])[1]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_is_the_papers_loop(build_model, batch, norm):
    """Budgets so small that few images cross at once: the schedule of most runs to the end."""
    model, (images, _) = build_model(classes=6, dtype=torch.float64), batch(10, dtype=torch.float64)
    labels = model(images).argmax(1)
    eps = EPS[norm] / 6
    found = APGD(eps=eps, norm=norm, steps=30, random_start=False)(model, images, labels).images
    expected = torch.stack([loop_apgd(model, x, int(y), eps, norm, 30) for x, y in zip(images, labels, strict=True)])
    assert torch.allclose(found, expected, atol=1e-9)


def ascent(**given):
    base = dict.fromkeys(("index", "labels", "aims", "loss", "top_loss", "step", "rises", "marked"), torch.ones(1))
    point = torch.zeros(1, 1, 1, 1)
    base |= dict.fromkeys(("images", "x", "before", "gradient", "top", "top_gradient"), point)
    return _Ascent(**(base | {"halved": torch.tensor([False])} | given))


@pytest.mark.parametrize(
    ("rises", "top", "halved", "expected"),
    [
        (8.0, 2.0, False, 1.0),  # eight of ten rose, and the top is new: go on
        (7.0, 2.0, False, 0.5),  # fewer than 7.5 rose
        (8.0, 1.0, False, 0.5),  # neither step nor top changed
        (8.0, 1.0, True, 1.0),  # the step was halved last time: give it a chance
    ],
)
def test_when_the_step_is_halved(rises, top, halved, expected):
    at = ascent(
        rises=torch.tensor([rises]),
        top_loss=torch.tensor([top]),
        halved=torch.tensor([halved]),
        top=torch.full((1, 1, 1, 1), 5.0),
    )
    at.adapt(0.75 * 10)
    assert at.step.item() == expected
    assert at.x.item() == (5.0 if expected == 0.5 else 0.0)
    assert at.rises.item() == 0


def test_the_targeted_loss_by_hand():
    logits = torch.tensor([[[4.0, 1.0, 3.0, 0.0, 2.0]]])
    value = APGDT().objective(logits, torch.tensor([0]), torch.tensor([4]))
    assert value.item() == pytest.approx((2 - 4) / (4 - (2 + 1) / 2))
    few = APGDT().objective(logits[..., :3], torch.tensor([0]), torch.tensor([2]))
    assert few.item() == -1


def test_the_likeliest_wrong_classes():
    logits, labels = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]]), torch.tensor([0, 1])
    assert likeliest_wrong(logits, labels, 1).tolist() == [[2, 2]]
    assert likeliest_wrong(logits, labels, 9).tolist() == [[2, 2], [1, 0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_it_fools_a_trained_classifier_and_more_steps_help(digits_model, kind, norm):
    model, test = digits_model
    part = test[:100]
    few = {"targets": 3} if kind is APGDT else {}
    accuracies = []
    for steps in (1, 20):
        result = kind(eps=EPS[norm], norm=norm, steps=steps, **few)(model, part.images, part.labels, generator(0, "apgd"))
        accuracies.append(result.accuracy)
        assert result.success.equal(model(result.images).argmax(1) != part.labels)
    assert accuracies[1] < accuracies[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_few_classes(build_model, batch, kind, classes):
    model, (images, labels) = build_model(classes=classes), batch(7, classes=classes)
    result = kind(eps=0.1, steps=5)(model, images, labels, generator(0))
    assert result.images.isfinite().all()
    assert result.objective > margin(model(images), labels).mean()


@pytest.mark.parametrize("kind", KINDS)
def test_images_that_are_wrong_already_cost_one_query(build_model, batch, kind):
    model, (images, _) = build_model(), batch(6)
    labels = (model(images).argmax(1) + 1) % 4
    result = kind(eps=0.1, steps=5)(model, images, labels, generator(0))
    assert torch.equal(result.images, images)
    assert result.queries == 2 * len(images)  # the first look and the last


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_behind_a_batch_test_the_batch_stays_whole(build_model, batch, kind, norm):
    model, (images, _) = build_model(), batch(12)
    target = Together(model)
    labels = target.logits(images)[0].argmax(1)
    result = kind(eps=EPS[norm] / 2, norm=norm, steps=15)(target, images, labels, generator(0))
    assert set(target.sizes) == {12}
    assert result.success.sum() >= 4
    assert result.images.sub(images).abs().flatten(1).amax(1).min() > 0


def test_behind_a_batch_test_there_is_one_step_size(build_model, batch, monkeypatch):
    spread = []
    adapt = _Ascent.adapt

    def watched(self, enough):
        adapt(self, enough)
        spread.append((self.step.max() - self.step.min()).item())

    monkeypatch.setattr(_Ascent, "adapt", watched)
    model, (images, _) = build_model(), batch(12)
    labels = model(images).argmax(1)
    APGD(eps=0.02, steps=40)(Together(model), images, labels, generator(0))
    assert max(spread) == 0
    spread.clear()
    APGD(eps=0.02, steps=40)(model, images, labels, generator(0))
    assert max(spread) > 0


def test_noise_is_averaged(build_model, batch):
    """The queries say how often an image was computed: once per draw."""

    class Noisy(Plain):
        def logits(self, images, route=None, draws=1, generator=None):
            noise = torch.randn(draws, *images.shape, generator=generator) * 0.05
            return torch.stack([self.model(images + part) for part in noise])

    model, (images, _) = build_model(), batch(3)
    labels = model(images).argmax(1)
    result = APGD(eps=1e-4, steps=4, draws=8)(Noisy(model), images, labels, generator(0))
    assert result.queries == 3 * (8 + 8 + 8 * 5 + 1)  # first look, the same again, start and four steps, decision


def test_who_is_across_by_luck_is_not_done(lucky):
    images, labels = torch.full((3, 1, 2, 2), 0.5), torch.zeros(3, dtype=torch.long)
    result = APGD(eps=0.1, steps=4, draws=2, random_start=False)(lucky, images, labels, generator(0))
    assert torch.allclose(result.images, images + 0.1)


def test_survivors_are_indexed_and_kept_in_order():
    images = torch.zeros(4, 1, 1, 1)
    best = Survivors(Plain(lambda x: x), images)
    best.offer(images, torch.tensor([1.0, -1.0, -2.0, -3.0]))
    assert best.left.tolist() == [1, 2, 3]
    best.offer_at(best.left, images[1:] + torch.tensor([1.0, 2.0, 3.0])[:, None, None, None], torch.tensor([2.0, -5.0, 0.5]))
    assert best.images.flatten().tolist() == [0, 1, 0, 3]
    assert best.score.tolist() == [1, 2, -2, 0.5]
    assert best.left.tolist() == [2]
    assert images.abs().max() == 0


@pytest.mark.parametrize("setting", [{"steps": 0}, {"restarts": 0}, {"draws": 1.5}, {"rho": math.nan}, {"loss": "hinge"}])
def test_nonsensical_settings_are_refused(setting):
    (name,) = setting
    with pytest.raises(InputError, match=rf"^{name}: expected"):
        APGD(**setting)

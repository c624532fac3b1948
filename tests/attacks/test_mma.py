import pytest
import torch

from twoprong.attacks import MMA, NORMS
from twoprong.seeds import generator


def margin(model, images, targets, labels):
    z, rows = model(images), torch.arange(len(images))
    return z[rows, targets] - z[rows, labels]


def loop_mma(attack, model, images, labels):
    """One image and one target after the other; the image whose margin ends up largest is kept."""
    found = []
    for image, label in zip(images.split(1), labels.split(1), strict=True):
        ranked = model(image)[0].argsort(descending=True).tolist()
        targets = [kind for kind in ranked if kind != label.item()][: attack.targets]
        tried = []
        for target in targets:
            x = image.clone()
            for _ in range(attack.steps):
                leaf = x.clone().requires_grad_()
                (slope,) = torch.autograd.grad(margin(model, leaf, torch.tensor([target]), label), leaf)
                step = slope.sign() if attack.norm == "linf" else slope / slope.norm()
                moved = x + attack.step * step - image
                if attack.norm == "linf":
                    moved = moved.clamp(-attack.eps, attack.eps)
                elif moved.norm() > attack.eps:
                    moved = moved * attack.eps / moved.norm()
                x = (image + moved).clamp(0, 1)
            tried.append((margin(model, x, torch.tensor([target]), label).item(), x))
        found.append(max(tried, key=lambda pair: pair[0])[1])
    return torch.cat(found)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.9)])
@pytest.mark.parametrize("targets", [1, 2, 3, 5])
def test_it_is_the_loop_over_targets(build_model, batch, norm, eps, targets):
    model, (images, labels) = build_model(classes=6, dtype=torch.float64), batch(8, classes=6, dtype=torch.float64)
    attack = MMA(eps=eps, norm=norm, step=eps / 3, steps=5, targets=targets)
    found = attack(model, images, labels, None).images
    assert torch.allclose(found, loop_mma(attack, model, images, labels), atol=1e-9)


def test_targets_are_at_most_the_wrong_classes(build_model, batch):
    model, (images, labels) = build_model(classes=4), batch(6, classes=4)
    most, all_wrong = (MMA(eps=0.1, step=0.03, steps=4, targets=targets) for targets in (50, 3))
    assert torch.equal(most(model, images, labels).images, all_wrong(model, images, labels).images)


def test_two_classes(build_model, batch):
    model, (images, labels) = build_model(classes=2, dtype=torch.float64), batch(9, classes=2, dtype=torch.float64)
    found = MMA(eps=0.1, step=0.02, steps=8)(model, images, labels).images
    assert (margin(model, found, 1 - labels, labels) > margin(model, images, 1 - labels, labels)).all()


def test_more_targets_find_larger_margins(build_model, batch):
    """The likeliest wrong class is not always the easiest to reach; where another one is, its image is kept."""
    model, (images, labels) = build_model(classes=6, dtype=torch.float64), batch(60, classes=6, dtype=torch.float64)

    def reached(targets):
        found = MMA(eps=0.3, step=0.1, steps=4, targets=targets)(model, images, labels).images
        z = model(found).detach()
        wrong = z.scatter(1, labels[:, None], float("-inf")).amax(1)
        return wrong - z.gather(1, labels[:, None]).squeeze(1)

    gain = reached(5) - reached(1)
    assert gain.min() > -1e-9
    assert (gain > 1e-3).sum() >= 3


def test_it_draws_nothing(build_model, batch):
    model, (images, labels) = build_model(), batch(4)
    first, other = (MMA(eps=0.1)(model, images, labels, generator(seed)).images for seed in (0, 1))
    assert torch.equal(first, other)


def test_it_fools_a_trained_classifier(digits_model):
    model, test = digits_model
    part = test[:100]
    result = MMA(eps=0.18, step=0.045)(model, part.images, part.labels)
    assert result.accuracy < 0.2  # 10 % would be chance
    assert NORMS["linf"].size(result.images - part.images).max() <= 0.18 + 1e-6

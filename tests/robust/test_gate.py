"""The gate's arithmetic against loops, and the search for small margins where the smallest one is known."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from twoprong.robust.gate import SCORES, Margins, Smallest, choose_tau, curve, descend, joined, operating_point, read
from twoprong.seeds import generator


def some(n=300):
    draw = generator(0, "gate")
    lead = torch.rand(n, generator=draw)
    right, accurate = (torch.rand(n, generator=draw) < share for share in (0.8, 0.95))
    return Margins(lead, right, accurate, torch.where(right, lead, -lead) - 0.3 * torch.rand(n, generator=draw))


@pytest.mark.parametrize("tau", [0.0, 0.1, 0.35, 1.1])
def test_an_operating_point_is_counted_image_by_image(tau):
    margins, clean, robust, deferred = some(), 0, 0, 0
    for lead, right, accurate, smallest in zip(*(getattr(margins, name).tolist() for name in vars(margins)), strict=True):
        deferred += lead < tau
        clean += right if lead >= tau else accurate
        robust += smallest > 0 and smallest >= tau
    point = operating_point(margins, tau)
    assert (point.clean, point.robust, point.deferred) == pytest.approx((clean / 300, robust / 300, deferred / 300))


def test_a_curve_runs_from_the_robust_network_alone_to_the_accurate_one():
    margins = some()
    points = curve(margins)
    assert points[0].deferred == 0
    assert points[0].clean == pytest.approx(margins.right.double().mean().item())
    assert points[-1].deferred == pytest.approx(0.9, abs=0.02)
    assert all(later.robust <= earlier.robust for earlier, later in pairwise(points))


def test_tau_is_the_smallest_that_reaches_the_balance():
    margins = some()
    three = margins.lead, margins.right, margins.accurate_right
    least, most = (float(answers.double().mean()) for answers in (margins.right, margins.accurate_right))
    taus = [choose_tau(*three, balance) for balance in (1.0, 0.75, 0.5, 0.25, 0.0)]
    assert taus[0] == 0
    assert all(later > earlier for earlier, later in pairwise(taus))
    for tau, balance in zip(taus, (1.0, 0.75, 0.5, 0.25, 0.0), strict=True):
        goal = balance * least + (1 - balance) * most
        assert operating_point(margins, tau).clean >= goal - 1e-9
        assert all(operating_point(margins, lower).clean < goal for lower in margins.lead.tolist() if lower < tau)


def test_a_classifier_that_is_no_better_is_not_asked():
    lead, right = torch.tensor([0.1, 0.5, 0.9]), torch.tensor([True, True, False])
    assert choose_tau(lead, right, torch.tensor([False, True, False]), 0.0) == 0
    assert choose_tau(lead, torch.tensor([False] * 3), torch.tensor([True] * 3), 0.0) > 0.9  # everything goes to it


class Linear(nn.Module):
    """Three classes from the sums of three quarters of the image: margins in an l-inf ball are known exactly."""

    def forward(self, images):
        flat = images.flatten(1)
        return torch.stack([flat[:, 0:4].sum(1), flat[:, 4:8].sum(1), flat[:, 8:12].sum(1)], 1)


def found(eps):
    images = 0.3 + 0.4 * torch.rand(20, 1, 4, 4, generator=generator(0, "images"))
    model = Linear()
    labels = model(images).argmax(1)
    labels[0] = (labels[0] + 1) % 3  # one that is wrong from the start
    result = Smallest(images, labels, SCORES)
    descend(model, images, labels, eps, steps=20, found=result, draw=generator(0, "search"), targets=2)
    return model, images, labels, result


def test_the_search_finds_the_smallest_margin_where_it_is_known():
    eps = 0.05
    model, images, labels, result = found(eps)
    logits = model(images)
    rival = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    expected = logits.gather(1, labels[:, None])[:, 0] - rival - 8 * eps  # 4 pixels down, 4 pixels up
    torch.testing.assert_close(result.value["logits"], expected, atol=1e-4, rtol=0)
    for kept in result.images.values():
        assert (kept - images).abs().max() <= eps + 1e-6
    margins = read(model, model, images, result)
    torch.testing.assert_close(margins["logits"].smallest, expected, atol=1e-4, rtol=0)
    assert margins["logits"].right.sum() == 19
    for name, score in SCORES.items():
        assert (margins[name].smallest[1:] <= margins[name].lead[1:]).all()
        assert margins[name].lead.tolist() == pytest.approx(
            [row.sort().values[-1].item() - row.sort().values[-2].item() for row in score(logits)], abs=1e-6
        )


def test_margins_of_batches_are_joined_in_order():
    one = {"logits": some(10)}
    both = joined([one, one])
    assert both["logits"].lead.tolist() == one["logits"].lead.tolist() * 2
    assert len(both["logits"].right) == 20

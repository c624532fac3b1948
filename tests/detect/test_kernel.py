import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from twoprong.detect.kernel import DeepKernel, Sample, median_bandwidth, squared_distances


def loop_kernel(x, z, feature_bandwidth, pixel_bandwidth, beta0):
    """k(x_i, z_j) in float64, one pair after the other."""

    def squared(a, b):
        return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))

    xs = list(zip(x.pixels.flatten(1).tolist(), x.features.tolist(), strict=True))
    zs = list(zip(z.pixels.flatten(1).tolist(), z.features.tolist(), strict=True))
    gram = []
    for x_pixels, x_features in xs:
        row = []
        for z_pixels, z_features in zs:
            s = math.exp(-squared(x_features, z_features) / (2 * feature_bandwidth**2))
            q = math.exp(-squared(x_pixels, z_pixels) / (2 * pixel_bandwidth**2))
            row.append(((1 - beta0) * s + beta0) * q)
        gram.append(row)
    return torch.tensor(gram, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("feature_bandwidth", "pixel_bandwidth", "beta0"), [(1.1, 1.6, 0.2), (0.3, 4.0, 0.9)])
def test_values_agree_with_a_loop(draw_sample, dtype, feature_bandwidth, pixel_bandwidth, beta0):
    x, z = draw_sample(13, "x", dtype=dtype), draw_sample(8, "z", dtype=dtype)
    gram = DeepKernel(feature_bandwidth, pixel_bandwidth, beta0).to(dtype)(x, z)
    assert gram.shape == (13, 8)
    assert gram.dtype == dtype
    assert (gram.double() - loop_kernel(x, z, feature_bandwidth, pixel_bandwidth, beta0)).abs().max() < 1e-6
    assert gram.min() > 0
    assert gram.max() <= 1


def test_a_sample_with_itself_is_symmetric_with_a_diagonal_of_one(draw_sample):
    x = draw_sample(30, "x")
    gram = DeepKernel(1.0, 1.0)(x, x)
    assert torch.allclose(gram, gram.T, atol=1e-6)
    assert torch.allclose(gram.diagonal(), torch.ones(30), atol=1e-6)
    assert torch.linalg.eigvalsh(gram.detach().double()).min() > -1e-5  # positive definite but for rounding


def test_distances_far_from_the_origin_keep_their_digits():
    """A common offset of 1000 leaves distances of order 1: |x|² + |z|² - 2xz alone would be off by about 1."""
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)).double()
    offset = (x.float() + 1000).double()
    exact = (offset[:, None] - offset[None]).square().sum(2)
    assert (squared_distances(offset.float(), offset.float()).double() - exact).abs().max() < 1e-4


def test_a_huge_image_costs_the_others_no_digits(draw_sample):
    x, z = draw_sample(30, "x"), draw_sample(10, "z")
    kernel = DeepKernel(1.0, 1.0, 0.1).centred_at(x.features)
    expected, huge = kernel(z, z), z.features.clone()
    assert torch.allclose(expected, DeepKernel(1.0, 1.0, 0.1)(z, z), atol=1e-6)
    for size in (1e4, 1e10, 1e18):
        huge[3] = size
        gram = kernel(z, Sample(z.pixels, huge))
        others = torch.arange(10) != 3
        assert torch.equal(gram[:, others], expected[:, others])
        assert kernel.measurable(huge).all()
        assert gram.isfinite().all()
    for size in (1e20, math.inf, math.nan):
        huge[3] = size
        assert kernel.measurable(huge).tolist() == others.tolist()


def test_half_precision_inputs_are_measured_in_float32(draw_sample):
    x, z = draw_sample(10, "x"), draw_sample(10, "z")
    rounded = [Sample(part.pixels.bfloat16(), part.features.bfloat16()) for part in (x, z)]
    gram = DeepKernel(1.0, 1.0, 0.1)(*rounded)
    assert gram.dtype == torch.float32
    assert (gram.double() - loop_kernel(*rounded, 1.0, 1.0, 0.1)).abs().max() < 1e-6


def test_gradients_in_both_inputs(draw_sample):
    x, z = draw_sample(4, "x", dtype=torch.float64), draw_sample(3, "z", dtype=torch.float64)
    kernel = DeepKernel(1.1, 1.6, 0.2).double()
    inputs = [part.clone().requires_grad_() for part in (*x, *z)]
    assert gradcheck(lambda a, b, c, d: kernel(Sample(a, b), Sample(c, d)), inputs)
    assert gradcheck(lambda a, b: kernel(Sample(a, b), Sample(a, b)), inputs[:2])  # the diagonal's distance is zero


def test_parameters_are_shown_constrained():
    kernel = DeepKernel(2.5, 0.3, 0.25)
    assert kernel.feature_bandwidth.item() == pytest.approx(2.5)
    assert kernel.pixel_bandwidth.item() == pytest.approx(0.3)
    assert kernel.beta0.item() == pytest.approx(0.25)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.fill_(-7.0)
    assert kernel.feature_bandwidth > 0
    assert 0 < kernel.beta0 < 1


def test_median_heuristic_gives_one_over_e_at_the_median_distance(draw_sample):
    sample = draw_sample(11, "median")  # 55 distances, so that one of them is the median
    kernel = DeepKernel.from_median(sample, beta0=0.4)
    for rows, bandwidth in ((sample.features, kernel.feature_bandwidth), (sample.pixels, kernel.pixel_bandwidth)):
        points = rows.flatten(1).double().numpy()
        median = np.median([np.linalg.norm(a - b) for a, b in combinations(points, 2)])
        assert math.exp(-(median**2) / (2 * bandwidth.item() ** 2)) == pytest.approx(1 / math.e, rel=1e-5)
    assert kernel.beta0.item() == pytest.approx(0.4)


@pytest.mark.parametrize("rows", [torch.full((40, 3), 0.3), torch.rand(1, 9).expand(300, 9), torch.rand(1, 4)])
def test_bandwidth_is_one_where_all_rows_are_the_same(rows):
    assert median_bandwidth(rows) == 1.0


def test_a_sample_is_as_long_as_its_images_and_gives_rows(draw_sample):
    sample = draw_sample(9, "rows")
    part = sample.rows(torch.tensor([4, 1]))
    assert len(sample) == 9
    assert len(part) == 2
    assert torch.equal(part.pixels[1], sample.pixels[1])
    assert torch.equal(part.features[0], sample.features[4])
    assert len(sample.rows(slice(2, 5))) == 3

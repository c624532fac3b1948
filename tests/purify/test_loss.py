import math

import pytest
import torch
from torch import nn

from twoprong.config import DenoiserConfig
from twoprong.detect.kernel import DeepKernel, Sample
from twoprong.models.features import Features
from twoprong.purify.loss import add_noise, denoiser_loss
from twoprong.seeds import generator, initialised


def grey(value, count=100):
    return torch.full((count, 3, 16, 16), value)


def noisy_by(images, sigma, draw, noise="symmetric"):
    return add_noise(images, DenoiserConfig(sigma=sigma, noise=noise), draw)


def test_noise_is_symmetric_and_has_its_size():
    sigma = 0.05  # mid-grey is ten standard deviations from either end, so nothing is clamped
    noise = (noisy_by(grey(0.5), sigma, generator(0, "noise")) - 0.5).double()
    count = noise.numel()
    assert abs(noise.mean()) < 5 * sigma / math.sqrt(count)
    assert abs(noise.std() - sigma) < 5 * sigma / math.sqrt(2 * count)  # five standard errors, both times
    assert abs((noise > 0).double().mean() - 0.5) < 5 * 0.5 / math.sqrt(count)
    assert abs((noise / sigma).pow(3).mean()) < 5 * math.sqrt(15 / count)  # the third moment of a normal law: 0 ± √15
    assert abs((noise / sigma).pow(4).mean() - 3) < 5 * math.sqrt(96 / count)  # the fourth: 3 ± √96


def test_every_image_and_pixel_gets_noise_of_its_own():
    noise = (noisy_by(grey(0.5, 20), 0.1, generator(0, "noise")) - 0.5).flatten(1)
    correlation = torch.corrcoef(noise) - torch.eye(20)
    assert correlation.abs().max() < 6 / math.sqrt(noise.shape[1])
    assert len(noise.unique()) > 0.9 * noise.numel()


def test_the_image_is_clamped_and_not_the_noise():
    images = torch.cat([grey(0.0), grey(1.0), grey(0.5)])
    noisy = noisy_by(images, 0.25, generator(0, "noise"))
    assert noisy.min() == 0
    assert noisy.max() == 1
    dark, bright, middle = noisy.split(100)
    for part, end in ((dark, 0), (bright, 1)):  # half of the noise points outward and is cut off
        share = (part == end).double().mean()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(part.numel())
    outside = math.erfc(0.5 / 0.25 / math.sqrt(2))
    share = ((middle == 0) | (middle == 1)).double().mean()
    assert abs(share - outside) < 5 * math.sqrt(outside / middle.numel())


def test_clamped_noise_is_the_positive_half_of_the_symmetric_one():
    images = torch.rand(4, 3, 8, 8, generator=generator(0, "images"))
    symmetric = 0.25 * torch.empty_like(images).normal_(generator=generator(1, "noise"))
    found = noisy_by(images, 0.25, generator(1, "noise"), "clamped")
    assert torch.equal(found, (images + symmetric.clamp(0, 1)).clamp(0, 1))
    assert (found >= images).all()
    assert abs((found == images).float().mean() - 0.5) < 0.1


def test_noise_is_decided_by_its_generator():
    images = torch.rand(4, 3, 8, 8, generator=generator(0, "images"))
    kept = images.clone()
    first = noisy_by(images, 0.25, generator(1, "noise"))
    torch.manual_seed(7)
    before = torch.get_rng_state()
    assert torch.equal(noisy_by(images, 0.25, generator(1, "noise")), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(noisy_by(images, 0.25, generator(2, "noise")), first)
    assert torch.equal(images, kept)


def test_without_a_generator_the_global_stream_is_used():
    torch.manual_seed(3)
    first = noisy_by(grey(0.5, 2), 0.25, None)
    torch.manual_seed(3)
    assert torch.equal(noisy_by(grey(0.5, 2), 0.25, None), first)
    assert not torch.equal(noisy_by(grey(0.5, 2), 0.25, None), first)


def test_no_noise_leaves_the_images_and_gradients_pass():
    images = torch.rand(4, 1, 8, 8, generator=generator(0, "images")).requires_grad_()
    noisy = noisy_by(images, 0.0, generator(0, "noise"))
    assert torch.equal(noisy, images)
    noisy.sum().backward()
    assert torch.equal(images.grad, torch.ones_like(images))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh())
        self.head = nn.Linear(5, 3)
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        return self.head(self.body(images))


def problem(dtype=torch.float64):
    with initialised(0, "classifier"):
        model = Classifier().to(dtype)
    draw = generator(0, "problem")
    clean = torch.rand(6, 1, 4, 4, generator=draw, dtype=dtype)
    denoised = (clean + 0.3 * torch.rand(6, 1, 4, 4, generator=draw, dtype=dtype)).clamp(0, 1)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    return model, DeepKernel(0.7, 1.9, 0.2).to(dtype), Sample(clean, model.body(clean).detach()), denoised, labels


def by_hand(model, kernel, clean, denoised, labels, alpha, estimator="u"):
    """Equation 7 with loops over pairs of images: the mean of H_ij (the U-statistic's without i = j), then the mean
    negative log-likelihood."""
    deep = model.body(denoised)
    width, wide, beta = kernel.feature_bandwidth.item(), kernel.pixel_bandwidth.item(), kernel.beta0.item()

    def k(a, b):
        (pixels_a, features_a), (pixels_b, features_b) = a, b
        similar = math.exp(-(features_a - features_b).square().sum().item() / (2 * width**2))
        near = math.exp(-(pixels_a - pixels_b).square().sum().item() / (2 * wide**2))
        return ((1 - beta) * similar + beta) * near

    x, y = list(zip(*clean, strict=True)), list(zip(denoised, deep, strict=True))
    n = len(labels)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j or estimator == "v"]
    discrepancy = sum(k(x[i], x[j]) + k(y[i], y[j]) - k(x[i], y[j]) - k(y[i], x[j]) for i, j in pairs) / len(pairs)
    logits = (deep @ model.head.weight.T + model.head.bias).tolist()
    likelihood = [row[label] - math.log(sum(map(math.exp, row))) for row, label in zip(logits, labels.tolist(), strict=True)]
    return discrepancy - alpha * sum(likelihood) / n


@pytest.mark.parametrize("alpha", [0.0, 0.01, 2.0])
@pytest.mark.parametrize("estimator", ["u", "v"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_the_loss_is_the_discrepancy_plus_alpha_times_the_cross_entropy(alpha, estimator, dtype, tolerance):
    model, kernel, clean, denoised, labels = problem(dtype)
    loss = denoiser_loss(denoised, clean, labels, Features(model), kernel, alpha, estimator)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(by_hand(model, kernel, clean, denoised, labels, alpha, estimator), abs=tolerance)


def test_one_pass_of_the_classifier_gives_both_terms():
    model, kernel, clean, denoised, labels = problem()
    denoiser_loss(denoised, clean, labels, Features(model), kernel, 0.01)
    assert model.calls == 1


def test_the_gradient_is_that_of_the_loss():
    model, kernel, clean, denoised, labels = problem()
    extract = Features(model)
    assert torch.autograd.gradcheck(
        lambda images: denoiser_loss(images, clean, labels, extract, kernel, 0.3), denoised.clone().requires_grad_()
    )

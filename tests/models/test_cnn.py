import pytest
import torch
from torch import nn

from twoprong.models.cnn import SmallCNN
from twoprong.seeds import generator, initialised


@pytest.mark.parametrize("channels", [1, 3])
def test_parameter_count(channels):
    convolutions = 9 * (channels * 32 + 32 * 64 + 64 * 128)
    norms = 2 * (32 + 64 + 128)
    linear = (128 + 1) * 128 + (128 + 1) * 10
    count = sum(p.numel() for p in SmallCNN(10, channels).parameters())
    assert count == convolutions + norms + linear
    assert 100_000 <= count <= 200_000


@pytest.mark.parametrize("side", [8, 9, 28, 32, 64])
def test_sides_from_8_to_64(side):
    assert SmallCNN(10, 1).eval()(torch.rand(2, 1, side, side)).shape == (2, 10)


def test_it_can_learn_sixteen_random_images_by_heart():
    draw = generator(0, "memorise")
    images = torch.rand(16, 3, 8, 8, generator=draw)
    labels = torch.randint(0, 4, (16,), generator=draw)
    with initialised(0, "memorise"):
        model = SmallCNN(4, 3)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    with torch.no_grad():
        assert torch.equal(model.eval()(images).argmax(dim=1), labels)

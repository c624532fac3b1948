import pytest
import torch
from torch import nn

from twoprong.attacks.target import Plain
from twoprong.data.digits import load_digits
from twoprong.models.cnn import SmallCNN
from twoprong.seeds import generator, initialised


@pytest.fixture
def build_model():
    """Makes an untrained classifier of 8×8 images with batch norm (its statistics away from 0 and 1) and dropout."""

    def make(channels=1, classes=4, dtype=torch.float32):
        with initialised(0, "model", channels, classes):
            model = nn.Sequential(
                nn.Conv2d(channels, 6, 3, padding=1),
                nn.BatchNorm2d(6),
                nn.ReLU(),
                nn.Dropout(0.5),
                nn.Flatten(),
                nn.Linear(6 * 64, classes),
            )
            nn.init.normal_(model[1].running_mean, 0, 0.1)
            nn.init.uniform_(model[1].running_var, 0.5, 2)
        return model.to(dtype).eval()

    return make


@pytest.fixture
def batch():
    """Makes images of 8×8, with black and white pixels among them, and labels."""

    def make(n, channels=1, classes=4, dtype=torch.float32):
        source = generator(0, "batch", n, channels, classes)
        images = (torch.rand(n, channels, 8, 8, generator=source) * 1.4 - 0.2).clamp(0, 1)
        return images.to(dtype), torch.randint(classes, (n,), generator=source)

    return make


@pytest.fixture(scope="session")
def digits_model():
    """A small CNN trained on the digits for a few seconds, frozen, with the test images it has not seen."""
    data = load_digits()
    with initialised(0, "digits"):
        model = SmallCNN(10, 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    source = generator(0, "order")
    for _ in range(6):
        for index in torch.randperm(len(data.train), generator=source).split(128):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data.train.images[index]), data.train.labels[index]).backward()
            optimiser.step()
    return model.eval().requires_grad_(False), data.test


class Lucky(Plain):
    """The brighter an image, the nearer it is to the wrong class, and none gets there; but the first look says it has."""

    def __init__(self):
        super().__init__(lambda x: torch.stack([0 * x[:, 0, 0, 0], x.mean((1, 2, 3)) - 0.9], 1))
        self.looks = 0

    def logits(self, images, route=None, draws=1, generator=None):
        self.looks += 1
        return super().logits(images) + torch.tensor([0.0, float(self.looks == 1)])

    def classified(self, seen, route="flagged"):
        return self.logits(seen)[0]


@pytest.fixture
def lucky():
    return Lucky()

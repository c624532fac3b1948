import pytest
import torch

from twoprong.detect.kernel import Sample
from twoprong.seeds import generator


@pytest.fixture(scope="session")
def draw_sample():
    """Makes a Sample of n one-channel images of 4×4 in (0,1) with 5 features that follow from them and some noise."""

    def make(n, *name, shift=0.0, dtype=torch.float32):
        source = generator(0, *name)
        mixing = torch.randn(16, 5, generator=generator(0, "mixing"), dtype=torch.float64) / 4
        pixels = torch.rand(n, 1, 4, 4, generator=source, dtype=torch.float64)
        noise = torch.randn(n, 5, generator=source, dtype=torch.float64)
        features = (pixels.flatten(1) - 0.5) @ mixing + 0.5 * noise + shift
        return Sample(pixels.to(dtype), features.to(dtype))

    return make

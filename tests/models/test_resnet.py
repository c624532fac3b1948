import pytest
import torch
from torch import nn

from twoprong.models.resnet import ResNet, resnet18, resnet50


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("make", "figure", "features"), [(resnet18, 11_173_962, 512), (resnet50, 23_520_842, 2048)])
def test_parameter_counts_are_the_published_ones(make, figure, features):
    with torch.device("meta"):  # shapes without memory
        assert count(make(10, 3)) == figure
        assert count(make(10, 1)) == figure - 2 * 9 * 64
        assert count(make(100, 3)) == figure + 90 * (features + 1)


@pytest.mark.parametrize("side", [8, 15, 28, 40])
@pytest.mark.parametrize("bottleneck", [False, True])
def test_any_side_from_8_up(side, bottleneck):
    model = ResNet(5, 1, depths=(1, 1, 1, 1), bottleneck=bottleneck).eval()
    with torch.no_grad():
        assert model(torch.rand(1, 1, side, side)).shape == (1, 5)


@pytest.mark.parametrize("make", [resnet18, resnet50])
def test_the_stem_keeps_the_resolution_and_three_stages_halve_it(make):
    with torch.device("meta"):
        model = make(10, 3)
        stem = model.stem(torch.rand(2, 3, 32, 32))
        assert stem.shape[2:] == (32, 32)
        assert model.blocks(stem).shape[2:] == (4, 4)


def test_a_silent_branch_leaves_the_rectified_identity():
    block = ResNet(10, 3, depths=(1,), bottleneck=False).blocks[0].eval()
    nn.init.zeros_(block.branch[-1].weight)
    x = torch.randn(2, 64, 4, 4)
    assert torch.equal(block(x), x.relu())

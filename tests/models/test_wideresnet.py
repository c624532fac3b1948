import pytest
import torch
from torch import nn

from twoprong.errors import InputError
from twoprong.models.wideresnet import PreActivation, WideResNet


def count(depth: int, width: int, classes: int = 10, channels: int = 3) -> int:
    with torch.device("meta"):  # shapes without memory: the largest has 267 million parameters
        return sum(p.numel() for p in WideResNet(classes, channels, depth, width).parameters())


def test_wrn_28_10_has_the_published_number_of_parameters():
    assert count(28, 10) == 36_479_194
    assert count(28, 10, channels=1) == 36_479_194 - 2 * 9 * 16
    assert count(28, 10, classes=100) == 36_479_194 + 90 * (640 + 1)


@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 4), (34, 10), (70, 16)])
def test_counts_follow_the_arithmetic(depth, width):
    total, inputs = 3 * 9 * 16, 16
    for outputs in (16 * width, 32 * width, 64 * width):
        for _ in range((depth - 4) // 6):
            total += 9 * inputs * outputs + 9 * outputs * outputs + 2 * inputs + 2 * outputs
            total += inputs * outputs if inputs != outputs else 0
            inputs = outputs
    assert count(depth, width) == total + 2 * inputs + (inputs + 1) * 10


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 15, 28, 40])
def test_any_side_from_8_up(side, channels):
    model = WideResNet(5, channels, depth=10, width=2).eval()
    with torch.no_grad():
        assert model(torch.rand(1, channels, side, side)).shape == (1, 5)


def test_the_first_group_keeps_the_resolution_and_two_halve_it():
    model = WideResNet(10, 3, depth=10, width=1)
    sides, x = [], model.stem(torch.rand(1, 3, 32, 32))
    for block in model.blocks:
        x = block(x)
        sides.append(x.shape[-1])
    assert sides == [32, 16, 8]


def test_a_silent_branch_leaves_the_identity():
    block = PreActivation(8, 8, stride=1).eval()
    nn.init.zeros_(block.branch[-1].weight)
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(("inputs", "stride"), [(4, 1), (8, 2)])
def test_where_the_shape_changes_the_shortcut_reads_the_activated_input(inputs, stride):
    block = PreActivation(inputs, 8, stride).eval()
    nn.init.zeros_(block.branch[-1].weight)
    below_zero = -torch.rand(2, inputs, 4, 4)  # a fresh norm keeps the sign, so the ReLU erases all of it
    assert torch.count_nonzero(block(below_zero)) == 0
    assert torch.count_nonzero(block(-below_zero)) > 0


@pytest.mark.parametrize(("depth", "width"), [(4, 1), (11, 2), (27, 10), (28, 0)])
def test_impossible_depths_and_widths_are_refused(depth, width):
    with pytest.raises(InputError, match=r"DEPTH of the form 6n\+4"):
        WideResNet(10, 3, depth, width)

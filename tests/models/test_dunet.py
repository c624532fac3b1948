import pytest
import torch
from torch import nn

from twoprong.models.dunet import DUNet, enlarged
from twoprong.models.layout import channels_last
from twoprong.seeds import generator, initialised

FORWARD = {"widths": (64, 128, 256, 256, 256), "blocks": (2, 3, 3, 3, 3)}  # as the method's description has them,
BACKWARD = {"widths": (64, 128, 256, 256), "blocks": (2, 3, 3, 3)}  # the largest resolution first


def network(channels=3, width=1.0):
    with initialised(0, "dunet"):
        return DUNet(channels, width).eval()


def images(count, channels, height, width):
    return torch.rand(count, channels, height, width, generator=generator(0, "images"))


def parameters_by_hand(channels, scale=1):
    """3x3 convolutions without bias, a scale and a shift for each batch norm, the final 1x1 convolution."""

    def stage(before, after, blocks):
        return 9 * after * (before + (blocks - 1) * after) + blocks * 2 * after

    total, before, skips = 0, channels, []
    for wide, blocks in zip(*FORWARD.values(), strict=True):
        after = wide * scale
        total += stage(before, after, blocks)
        skips.append(after)
        before = after
    skips.pop()  # the deepest stage is where the way up begins
    for wide, blocks in zip(*(reversed(part) for part in BACKWARD.values()), strict=True):
        after = wide * scale
        total += stage(before + skips.pop(), after, blocks)
        before = after
    return total + before * channels


def test_the_published_number_of_parameters():
    assert parameters_by_hand(3) == 11_033_984
    assert sum(parameter.numel() for parameter in DUNet().parameters()) == 11_033_984


@pytest.mark.parametrize(("channels", "width", "scale"), [(1, 0.25, 1 / 4), (3, 0.25, 1 / 4), (3, 0.125, 1 / 8)])
def test_the_width_scales_every_layer(channels, width, scale):
    model = network(channels, width)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters_by_hand(channels, scale)


def test_a_tiny_width_leaves_at_least_one_channel():
    model = network(3, 0.001)
    assert {layer.out_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)} == {1, 3}
    assert model(images(2, 3, 8, 8)).shape == (2, 3, 8, 8)


def test_stages_have_the_described_blocks_widths_and_strides():
    model = network(3, 0.25)

    def described(stages):
        return [[(c.out_channels, c.stride[0]) for c in stage if isinstance(c, nn.Conv2d)] for stage in stages]

    forward = [
        [(wide // 4, 1 if stage == 0 or block > 0 else 2) for block in range(blocks)]
        for stage, (wide, blocks) in enumerate(zip(*FORWARD.values(), strict=True))
    ]
    backward = [[(wide // 4, 1)] * blocks for wide, blocks in zip(*BACKWARD.values(), strict=True)]
    assert described(model.down) == forward
    assert described(model.up) == backward[::-1]
    kinds = [type(layer) for stage in (*model.down, *model.up) for layer in stage]
    blocks = sum(FORWARD["blocks"]) + sum(BACKWARD["blocks"])
    assert kinds == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU] * blocks
    assert model.residual.kernel_size == (1, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (33, 17), (32, 32), (5, 7), (1, 1)])
def test_any_size_comes_back_in_its_own_shape(channels, height, width):
    model = network(channels, 0.1)
    given = images(2, channels, height, width)
    out = model(given)
    assert out.shape == given.shape
    assert not torch.equal(out, given)


def test_the_network_computes_a_residual():
    model = network(3, 0.1)
    given = images(2, 3, 33, 17)
    nn.init.zeros_(model.residual.weight)
    assert torch.equal(model(given), given)
    for parameter in (model.residual.weight, *model.down.parameters(), *model.up.parameters()):
        nn.init.normal_(parameter, std=0.1, generator=generator(0, "any weights"))
    assert not torch.equal(model(given), given)


def test_every_stage_takes_part():
    """A gradient reaches every parameter, so no skip and no stage is left out."""
    model = network(1, 0.1).train()
    model(images(4, 1, 32, 32)).square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0] == []


def test_skips_join_the_stage_of_the_same_size():
    """What enters each stage on the way up: the stage below, doubled in size, and the stage beside it, in that order."""
    model = network(3, 0.1)
    out = {}
    for name, stage in [(f"down{i}", s) for i, s in enumerate(model.down)] + [(f"up{i}", s) for i, s in enumerate(model.up)]:
        stage.register_forward_hook(lambda _, given, made, name=name: out.__setitem__(name, (given[0], made)))
    model(images(2, 3, 32, 32))
    below = out["down4"][1]
    for number in range(4):
        beside = out[f"down{3 - number}"][1]
        resized = nn.functional.interpolate(below, scale_factor=2, mode="bilinear")
        torch.testing.assert_close(out[f"up{number}"][0], torch.cat([resized, beside], 1))
        below = out[f"up{number}"][1]


def test_images_of_a_batch_do_not_see_each_other_in_eval_mode():
    model = network(3, 0.1)
    given = images(4, 3, 8, 8)
    torch.testing.assert_close(model(given)[1:2], model(given[1:2]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", [1, 2, 3, 8])
def test_the_doubling_for_compilers_is_bilinear_interpolation(side, monkeypatch):
    images = torch.rand(2, 3, side, side + 1, generator=generator(0, "images"), dtype=torch.float64, requires_grad=True)
    expected = enlarged(images, 2 * side, 2 * side + 2)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    written_out = enlarged(images, 2 * side, 2 * side + 2)
    assert written_out.grad_fn.name() != expected.grad_fn.name()
    torch.testing.assert_close(written_out, expected)
    weights = torch.rand(expected.shape, generator=generator(1, "weights"), dtype=torch.float64)
    slopes = [torch.autograd.grad(found, images, weights)[0] for found in (written_out, expected)]
    torch.testing.assert_close(*slopes)
    assert enlarged(images, 2 * side + 1, 7).shape == (2, 3, 2 * side + 1, 7)


@pytest.mark.parametrize("compiling", [False, True])
def test_what_enters_the_way_up_keeps_the_channels_last(compiling, monkeypatch):
    """A compiled network saves it in this layout for the backward pass; in any other, its convolutions copy it."""
    model, given = channels_last(network(3, 0.1)), images(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    entered = []
    for stage in model.up:
        stage.register_forward_pre_hook(lambda _, joined: entered.append(joined[0]))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    model(given)
    assert [joined.is_contiguous(memory_format=torch.channels_last) for joined in entered] == [True] * 4

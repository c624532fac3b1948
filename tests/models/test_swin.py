"""Swin: counts, sizes, and the windows against a plain double loop that knows nothing of rolling or masks."""

import pytest
import torch
from torch import Tensor

from twoprong.errors import InputError
from twoprong.models.swin import Swin, SwinBlock, from_windows, swin_t, to_windows
from twoprong.seeds import generator, initialised

# Which rows (and columns) attend to one another, by side and shift, for a window of 4: read off figure 2 of the paper.
GROUPS = {
    (8, False): ["0123", "4567"],
    (8, True): ["01", "2345", "67"],
    (4, False): ["0123"],
    (4, True): ["0123"],
    (2, True): ["01"],
}
CASES = pytest.mark.parametrize(("side", "shifted"), GROUPS, ids=str)


def together(side: int, shifted: bool) -> Tensor:
    """(side², side²), true where two tokens share a window, tokens counted row by row."""
    group = {int(place): index for index, places in enumerate(GROUPS[side, shifted]) for place in places}
    of = [(group[row], group[column]) for row in range(side) for column in range(side)]
    return torch.tensor([[a == b for b in of] for a in of])


def small_block(shifted: bool) -> SwinBlock:
    with initialised(0, "block"):
        block = SwinBlock(dim=8, heads=2, window=4, shifted=shifted).double()
        torch.nn.init.normal_(block.attention.bias_table)
    return block


@CASES
def test_a_token_influences_its_own_window_and_nothing_else(side, shifted):
    draw = generator(0, "tokens")
    tokens = torch.randn(1, side * side, 8, dtype=torch.float64, generator=draw)
    perturbed = tokens.repeat(side * side, 1, 1)
    perturbed[range(side * side), range(side * side)] = torch.randn(8, dtype=torch.float64, generator=draw)
    block = small_block(shifted)
    with torch.no_grad():
        before = block(tokens.reshape(1, side, side, 8))
        change = (block(perturbed.reshape(-1, side, side, 8)) - before).abs().amax(dim=3).flatten(1)
    assert torch.equal(change > 1e-9, together(side, shifted))


@CASES
def test_attention_agrees_with_a_double_loop(side, shifted):
    block = small_block(shifted)
    attention = block.attention
    tokens = torch.randn(side * side, 8, dtype=torch.float64, generator=generator(0, "tokens"))
    query, key, value = attention.qkv(tokens).chunk(3, dim=1)
    allowed = together(side, shifted)
    mixed = torch.zeros_like(tokens)
    for head in range(2):
        part = slice(4 * head, 4 * head + 4)
        for here in range(side * side):
            seen = allowed[here].nonzero().flatten().tolist()
            scores = []
            for there in seen:
                down, right = here // side - there // side, here % side - there % side
                bias = attention.bias_table[7 * (down + 3) + (right + 3), head]
                scores.append(query[here, part] @ key[there, part] / 2 + bias)  # 2 = sqrt(width of a head)
            mixed[here, part] = torch.stack(scores).softmax(dim=0) @ value[seen, part]
    expected = attention.project(mixed).reshape(1, side, side, 8)
    torch.testing.assert_close(block._attend(tokens.reshape(1, side, side, 8)), expected)


def test_windows_are_cut_row_by_row_and_put_back():
    places = torch.arange(16).reshape(1, 4, 4, 1)
    windows = to_windows(places, 2)
    assert windows[0, :, :, 0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert torch.equal(from_windows(windows, 4, 2), places)


def expected_count(patch: int, window: int, classes: int) -> int:
    total = 3 * patch**2 * 96 + 96 + 2 * 96
    for stage, (depth, heads) in enumerate([(2, 3), (2, 6), (6, 12), (2, 24)]):
        dim = 96 * 2**stage
        if stage > 0:
            half = dim // 2
            total += 2 * (4 * half) + (4 * half) * dim
        norms, attention, mlp = 4 * dim, 4 * dim**2 + 4 * dim, 8 * dim**2 + 5 * dim
        total += depth * (norms + attention + mlp + (2 * window - 1) ** 2 * heads)
    return total + 2 * 768 + (768 + 1) * classes


@pytest.mark.parametrize(("patch", "window", "classes"), [(2, 4, 10), (4, 7, 1000)])
def test_parameter_count_follows_the_arithmetic(patch, window, classes):
    with torch.device("meta"):
        model = Swin(classes, 3, patch=patch, window=window)
    assert sum(p.numel() for p in model.parameters()) == expected_count(patch, window, classes)


def test_the_arithmetic_gives_the_public_figure_for_imagenet():
    assert expected_count(patch=4, window=7, classes=1000) == 28_288_354


@pytest.mark.parametrize("side", [16, 32, 64])
def test_sides_that_divide_into_windows(side):
    with torch.device("meta"):
        assert swin_t(10, 1)(torch.rand(2, 1, side, side)).shape == (2, 10)


@pytest.mark.parametrize("shape", [(8, 8), (28, 28), (33, 33), (48, 48), (32, 64)])
def test_other_sides_are_refused_with_those_that_work(shape):
    with torch.device("meta"):
        model = swin_t(10, 3)
        images = torch.rand(1, 3, *shape)
    with pytest.raises(InputError, match=f"16, 32, 64, 128, .* got {shape[0]}x{shape[1]}; resize"):
        model(images)


def test_every_parameter_takes_part():
    with initialised(0, "tiny"):
        model = Swin(3, 1, dim=8, depths=(2, 2), heads=(1, 2), window=2)
    model(torch.rand(2, 1, 16, 16, generator=generator(0, "images"))).square().sum().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    assert idle == []

import hashlib
import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from twoprong.errors import DataError
from twoprong.seeds import initialised
from twoprong.storage import PACKED, file_sha256, fingerprint, load_tensors, save_tensors

KINDS = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_tensors_come_back_as_they_were(tmp_path, dtype):
    path = tmp_path / "tensors.safetensors"
    values = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4)
    tensors = {
        "plain": (values % 3).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 3, dtype=dtype),
        "channels last": (values % 5).to(dtype).to(memory_format=torch.channels_last),
        "a view": (values % 2).to(dtype)[:, 1:, ::2].transpose(0, 1),
    }
    save_tensors(path, tensors)
    loaded, metadata = load_tensors(path)
    assert metadata == {}
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name], tensor)


def test_tensors_that_share_memory_can_be_saved(tmp_path):
    path = tmp_path / "tensors.safetensors"
    weight = nn.Parameter(torch.rand(3, 3))
    save_tensors(path, {"one": weight, "tied": weight, "row": weight[0]})
    loaded, _ = load_tensors(path)
    assert torch.equal(loaded["one"], weight)
    assert torch.equal(loaded["tied"], weight)
    assert torch.equal(loaded["row"], weight[0])


def test_metadata_comes_back_with_its_types(tmp_path):
    path = tmp_path / "tensors.safetensors"
    metadata = {"epoch": 3, "key": "abc", "rate": 1 / 3, "none": None, "nested": {"list": [1, "ü", True]}}
    save_tensors(path, {"x": torch.zeros(1)}, metadata)
    assert load_tensors(path)[1] == metadata


def test_files_of_other_writers_are_read_too(tmp_path):
    path = tmp_path / "foreign.safetensors"
    save_file({"x": torch.ones(2)}, path, metadata={"format": "pt"})
    tensors, metadata = load_tensors(path)
    assert tensors["x"].tolist() == [1, 1]
    assert metadata == {}


PIXELS = torch.arange(256, dtype=torch.uint8)
EXACT_HALVES = [0.0, -0.0, 1.5, -(2.0**-24), 65504.0, float("inf"), -float("inf")]
PACKABLE = {
    "pixels": (PIXELS.float() / 255, torch.uint8),
    "pixels as data sources make them": (PIXELS.float().div_(255).view(16, 16), torch.uint8),
    "channels last": (
        (torch.arange(48) % 7).float().div(255).view(1, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.uint8,
    ),
    "one pixel": (torch.tensor(3) / 255, torch.uint8),
    "zeros": (torch.zeros(3), torch.uint8),
    "eight bits": (
        torch.tensor([[127.0, -64, 1], [0, 0, 0], [3, -2, 1]]) * torch.tensor([[2.0**-9], [1], [2**20]]),
        torch.int8,
    ),
    "eight bits, rows of one number": (torch.tensor([[0.375], [-5.0], [0.0]]), torch.int8),
    "eight bits, more exponents than fit into a row": (
        torch.tensor([[-1.0, 2], [3, 4], [5, 6], [7, 8], [0.5, 9]]),
        torch.int8,
    ),
    "nine bits": (torch.tensor([[128.0, 1], [1, 1]]), torch.float16),
    "minus zero in rows": (torch.tensor([[-0.0, 1.0]]), torch.float16),
    "minus zero": (torch.tensor([-0.0, 1.0]), torch.float16),
    "just below 0": (torch.tensor([-1.0, 255.0]) / 255, torch.float32),
    "just above 1": (torch.tensor(256.0) / 255, torch.float32),
    "halves": (torch.tensor(EXACT_HALVES), torch.float16),
    "every half there is": (torch.arange(-31744, 31744, dtype=torch.int16).view(torch.float16).float(), None),
    "a bit beyond a pixel": (torch.nextafter(PIXELS[1:].float() / 255, torch.tensor(2.0)), torch.float32),
    "a bit beyond a half": (torch.nextafter(torch.tensor([1.5]), torch.tensor(2.0)), torch.float32),
    "too large": (torch.tensor([65536.0, 1.0]), torch.float32),
    "too small": (torch.tensor([1e-30, 1.0]), torch.float32),
    "not a number": (torch.tensor([float("nan"), 0.0]), torch.float32),
    "nothing": (torch.empty(0, 3), torch.float32),
    "doubles": (torch.ones(3, dtype=torch.double), torch.double),
    "whole numbers": (torch.arange(3), torch.long),
    "truths": (torch.tensor([True, False]), torch.bool),
    "halves already": (torch.ones(3).half(), torch.half),
}


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


@pytest.mark.parametrize("name", PACKABLE)
def test_packed_tensors_take_the_least_room_and_come_back_bit_for_bit(tmp_path, name):
    path, (tensor, stored) = tmp_path / "packed.safetensors", PACKABLE[name]
    save_tensors(path, {"x": tensor, "other": torch.tensor([1 / 3])}, {"epoch": 3}, packed=True)
    loaded, metadata = load_tensors(path)
    assert metadata == {"epoch": 3}
    assert loaded["x"].dtype == tensor.dtype
    assert loaded["x"].shape == tensor.shape
    assert torch.equal(bits(loaded["x"]), bits(tensor))
    assert torch.equal(bits(loaded["other"]), bits(torch.tensor([1 / 3])))
    assert stored is None or load_file(path)["x"].dtype == stored


def test_without_packing_a_file_holds_the_tensors_as_they_are(tmp_path):
    path = tmp_path / "plain.safetensors"
    save_tensors(path, {"x": torch.zeros(100)})
    assert load_file(path)["x"].dtype == torch.float32


def test_the_same_tensors_make_the_same_packed_file(tmp_path):
    tensors = {str(number): torch.full((3,), number / 255) for number in range(20)}
    for name in ("one", "two"):
        save_tensors(tmp_path / name, tensors, {"b": 1, "a": 2}, packed=True)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("shape", [(1, 0), (0, 3), (1, 5), (2, 1, 0)], ids=str)
def test_forged_eight_bit_tensors_are_small_or_empty_never_an_error_of_torch(tmp_path, shape):
    path = tmp_path / "forged.safetensors"
    save_file({"x": torch.zeros(shape, dtype=torch.int8)}, path, metadata={"json": json.dumps({PACKED: {"x": "int8"}})})
    assert load_tensors(path)[0]["x"].numel() == 0


@pytest.mark.parametrize("note", [{"x": "uint4"}, {"absent": "uint8"}, {"x": "float16"}, {"x": 7}, ["x"], 7])
def test_a_note_that_does_not_fit_its_tensors_is_a_data_error(tmp_path, note):
    path = tmp_path / "note.safetensors"
    save_file({"x": torch.ones(2, dtype=torch.uint8)}, path, metadata={"json": json.dumps({PACKED: note})})
    with pytest.raises(DataError, match=r"note\.safetensors"):
        load_tensors(path)


def truncated(content):
    return content[: len(content) - 7]


def header_too_long(content):
    return (2**60).to_bytes(8, "little") + content[8:]


def broken_header(content):
    return content[:8] + b"#" + content[9:]


@pytest.mark.parametrize("damage", [truncated, header_too_long, broken_header, lambda _: b"", lambda _: b"PK\x03\x04" * 9])
def test_a_damaged_file_is_a_data_error_that_names_it(tmp_path, damage):
    path = tmp_path / "tensors.safetensors"
    save_tensors(path, {"x": torch.rand(50)}, {"epoch": 1})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=re.escape(f"{path}: not a readable safetensors file")):
        load_tensors(path)


def test_a_missing_file_and_a_broken_note_are_data_errors_too(tmp_path):
    with pytest.raises(DataError, match=r"absent\.safetensors"):
        load_tensors(tmp_path / "absent.safetensors")
    save_file({"x": torch.ones(2)}, tmp_path / "note.safetensors", metadata={"json": "{broken"})
    with pytest.raises(DataError, match=r"note\.safetensors"):
        load_tensors(tmp_path / "note.safetensors")


def test_file_sha256_is_that_of_the_content(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 1000)
    assert file_sha256(path) == hashlib.sha256(b"abc" * 1000).hexdigest()


def network(**changes):
    with initialised(0, "network"):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    for name, change in changes.items():
        change(model.get_parameter(name) if name != "model" else model)
    return model


def test_everything_a_tensor_is_counts():
    tensor = torch.arange(12, dtype=torch.int32).view(3, 4)
    one_bit = tensor.clone()
    one_bit[2, 3] ^= 1
    variants = {
        "same": tensor,
        "value": one_bit,
        "order": tensor.flip(0),
        "dtype of the same bytes": tensor.view(torch.float32),
        "dtype of the same values": tensor.long(),
        "shape": tensor.view(4, 3),
        "transposed": tensor.T,
        "flat": tensor.flatten(),
        "longer": torch.cat([tensor, tensor]),
    }
    assert len({fingerprint(variant) for variant in variants.values()}) == len(variants)
    assert fingerprint(tensor.clone()) == fingerprint(tensor)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_every_dtype_has_a_fingerprint_that_sees_a_changed_value(dtype):
    tensor = torch.zeros(5).to(dtype)
    other = tensor.clone()
    other[4] = 1
    assert fingerprint(tensor) == fingerprint(tensor.clone())
    assert fingerprint(tensor) != fingerprint(other)
    assert fingerprint(tensor[0]) != fingerprint(other[4])


def test_the_layout_in_memory_does_not_count():
    images = torch.rand(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    assert fingerprint(images.to(memory_format=torch.channels_last)) == fingerprint(images)
    assert fingerprint(images.transpose(1, 2).contiguous().transpose(1, 2)) == fingerprint(images)
    model = network()
    before = fingerprint(model)
    assert fingerprint(model.to(memory_format=torch.channels_last)) == before
    assert fingerprint(images.clone().requires_grad_()) == fingerprint(images)


def test_everything_a_module_holds_counts():
    def nudge(parameter):
        parameter.data.view(-1)[0] += 1e-3

    def half(model):
        model.half()

    def other_buffer(model):
        model[1].running_mean[2] = 1

    def seen_a_batch(model):
        model[1].num_batches_tracked += 1

    models = [network(), network(**{"0.weight": nudge}), network(model=half), network(model=other_buffer)]
    models += [network(model=seen_a_batch), nn.Sequential(nn.Identity(), *network())]  # the last: other names
    assert len({fingerprint(model) for model in models}) == len(models)
    assert fingerprint(network()) == fingerprint(network())


def test_parts_have_an_order_and_borders():
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    keys = [
        (a, b),
        (b, a),
        (a,),
        (torch.cat([a, b]),),
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (a, "ab"),
        ("1",),
        (1, 2),
        (12,),
        (None,),
    ]
    assert len({fingerprint(*parts) for parts in keys}) == len(keys)
    assert fingerprint({"x": 1, "y": [2]}) == fingerprint({"y": [2], "x": 1})
    assert fingerprint({"x": 1, "y": [2]}) != fingerprint({"x": 2, "y": [1]})

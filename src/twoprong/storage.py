"""Tensors with metadata in files (safetensors, never pickle), and fingerprints."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from twoprong.atomic import write_atomic
from twoprong.errors import DataError

PACKED = "__packed__"  # the key in a file's note under which the packed tensors stand, each with its packing's name


class Packing(NamedTuple):
    """A way to store float32 in fewer bytes: there and back."""

    pack: Callable[[Tensor], Tensor]
    unpack: Callable[[Tensor], Tensor]


def _eight_bits(weights: Tensor) -> Tensor:
    """Every row (an output channel) as whole numbers up to 127 times a power of two; the powers stand in more rows below.

    What is not of that form is rounded to it. A tensor of one dimension has no rows: whole numbers only.
    """
    if weights.ndim < 2:
        return weights.round().clamp(-127, 127).to(torch.int8)
    rows = weights.flatten(1)
    fraction, power = torch.frexp(rows.abs().amax(1) / 127)
    power = (power - (fraction == 0.5).int()).clamp(-126, 127)  # the smallest power of two that holds the row
    whole = torch.ldexp(rows, -power[:, None]).round().clamp(-127, 127)
    padding = -len(rows) % rows.shape[1]
    below = torch.cat([power, power.new_zeros(padding)]).view(-1, rows.shape[1])
    return torch.cat([whole.to(torch.int8), below.to(torch.int8)]).view(-1, *weights.shape[1:])


def _from_eight_bits(packed: Tensor) -> Tensor:
    if packed.ndim < 2:
        return packed.float()
    rows = packed.flatten(1)
    count = len(rows) * rows.shape[1] // (rows.shape[1] + 1)  # n rows and ceil(n / length) below them
    power = rows[count:].flatten()[:count].int()
    return torch.ldexp(rows[:count].float(), power[:, None]).view(count, *packed.shape[1:])


PACKINGS = {
    "uint8": Packing(lambda x: (x * 255).round().clamp(0, 255).byte(), lambda x: x.float() / 255),  # pixels, as k/255
    "int8": Packing(_eight_bits, _from_eight_bits),  # weights that were rounded to it
    "float16": Packing(Tensor.half, Tensor.float),
}  # the smallest first


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None, packed: bool = False
) -> None:
    """Write tensors and a JSON-able `metadata` to one safetensors file, atomically.

    With `packed`, float32 tensors take the least room that loses no bit (PACKINGS); `load_tensors` gives them back as they
    were.
    """
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    note = dict(metadata or {})
    if packed:
        kinds = {name: kind for name, tensor in whole.items() if (kind := packing(tensor)) is not None}
        whole |= {name: PACKINGS[kind].pack(whole[name]) for name, kind in kinds.items()}
        note[PACKED] = kinds
    # One entry only: safetensors gives several no fixed order, and the same tensors should make the same file.
    header = {"json": json.dumps(note, sort_keys=True)}
    write_atomic(path, lambda temporary: temporary.write_bytes(save(whole, metadata=header)))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` (or any safetensors writer) wrote: tensors and metadata. Raises DataError naming the file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("json", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        for name, kind in metadata.pop(PACKED, {}).items():
            if tensors[name].dtype != getattr(torch, kind):
                raise ValueError(f"{name}: packed as {kind}, stored as {tensors[name].dtype}")
            tensors[name] = PACKINGS[kind].unpack(tensors[name])
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: not a readable safetensors file ({error})") from error
    return tensors, metadata


def packing(tensor: Tensor) -> str | None:
    """The smallest packing that gives a tensor back bit for bit; the bits, because 0.0 == -0.0."""
    if tensor.dtype != torch.float32 or tensor.numel() == 0 or bool(tensor.isnan().any()):
        return None  # what becomes of the bits of a NaN in half precision depends on the processor
    for kind, (pack, unpack) in PACKINGS.items():
        if torch.equal(unpack(pack(tensor)).view(torch.int32), tensor.view(torch.int32)):
            return kind
    return None


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(*parts: object) -> str:
    """SHA-256 of tensors, modules (their state) and JSON-able values, in order: a key for 'everything this depends on'."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, nn.Module):
            _add_state(digest, part.state_dict())
        elif isinstance(part, Tensor):
            _add(digest, part)
        else:
            digest.update(json.dumps(part, sort_keys=True).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def state_fingerprint(state: Mapping[str, Tensor]) -> str:
    """The fingerprint of a module with this state, without the module."""
    digest = hashlib.sha256()
    _add_state(digest, state)
    digest.update(b"\0")
    return digest.hexdigest()


def _add_state(digest: Any, state: Mapping[str, Tensor]) -> None:
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        _add(digest, tensor)


def _add(digest: Any, tensor: Tensor) -> None:
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())

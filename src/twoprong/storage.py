"""Files that are either whole or absent: atomic writes, tensors with metadata (safetensors, never pickle), fingerprints."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from twoprong.errors import DataError


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then move it into place: a reader sees the old file or the new.

    The temporary name is fixed, so a file left behind by a killed run is overwritten by the next one.
    """
    temporary = path.with_name(f".{path.name}.partial")
    write(temporary)
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file or a directory entry to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write tensors and a JSON-able `metadata` to one safetensors file, atomically."""
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    note = {"json": json.dumps(metadata or {}, sort_keys=True)}
    write_atomic(path, lambda temporary: temporary.write_bytes(save(whole, metadata=note)))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` (or any safetensors writer) wrote: tensors and metadata. Raises DataError naming the file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get("json", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable safetensors file ({error})") from error


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(*parts: object) -> str:
    """SHA-256 of tensors, modules (their state) and JSON-able values, in order: a key for 'everything this depends on'."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, nn.Module):
            for name, tensor in sorted(part.state_dict().items()):
                digest.update(name.encode())
                _add(digest, tensor)
        elif isinstance(part, Tensor):
            _add(digest, part)
        else:
            digest.update(json.dumps(part, sort_keys=True).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _add(digest: Any, tensor: Tensor) -> None:
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())

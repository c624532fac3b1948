"""Trained weights from a file that others wrote: safetensors, or a .pt that holds plain tensors and nothing else."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twoprong.errors import DataError, InputError
from twoprong.storage import load_tensors

TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")
INSIDE = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights in a checkpoint
CONVERT = (
    "where you trust the file, write its weights anew: safetensors.torch.save_file(model.state_dict(), 'net.safetensors')"
)


def load_weights(model: nn.Module, file: Path, name: str) -> None:
    """Put the weights of a file into a model. Raises DataError for a file that cannot be read, InputError for others'."""
    state = _torch_file(file) if file.suffix.lower() in TORCH_FILES else load_tensors(file)[0]
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        raise InputError(
            f"--weights {file}: these are not {name}'s weights ({first}){_more_classes(model, state)}"
        ) from error


def _more_classes(model: nn.Module, state: dict[str, Tensor]) -> str:
    """The way out where nothing but the number of outputs differs, and the file has more of them."""
    own = model.state_dict()
    if own.keys() != state.keys():
        return ""
    shapes = [(tuple(own[key].shape) or (1,), tuple(state[key].shape) or (1,)) for key in own]
    counts = {(mine[0], other[0], mine[1:] == other[1:]) for mine, other in shapes if mine != other}
    here, there, alike = counts.pop() if len(counts) == 1 else (0, 0, False)
    if not alike or here > there:
        return ""
    return (
        f"; only the last layer differs: the file's has {there} outputs, the data have {here} classes; name all of the "
        "classifier's classes, in its order: --classes a,b,c"
    )


def _torch_file(file: Path) -> dict[str, Tensor]:
    """The state in a file of torch's; nothing in it is executed, and anything but tensors is refused."""
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    try:
        with warnings.catch_warnings(action="ignore"):  # what torch has to say of old files is not for our users
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises far more than it documents, in colours, and advises to run what is refused
        raise DataError(f"{file}: holds more than plain tensors, or is damaged; {CONVERT}") from error
    for key in INSIDE:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content or not all(isinstance(value, Tensor) for value in content.values()):
        raise DataError(f"{file}: expected a state_dict, names with one tensor each, got {_kind(content)}; {CONVERT}")
    if all(str(key).startswith("module.") for key in content):  # saved from a DataParallel model
        content = {key.removeprefix("module."): value for key, value in content.items()}
    return content


def _kind(content: Any) -> str:
    return f"a dict with {', '.join(map(str, list(content)[:5]))}" if isinstance(content, dict) else type(content).__name__

"""Training that survives a kill: everything a loop needs to go on, in one atomic safetensors file, no pickle."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from twoprong.storage import load_tensors, save_tensors

log = logging.getLogger("twoprong")


@dataclass(frozen=True)
class Checkpoint:
    """The file of one training stage. `key` names everything the stage depends on; a file with another key is not read."""

    path: Path | None
    key: str
    resume: bool

    def save(self, epoch: int, model: nn.Module, optimiser: torch.optim.Optimizer, draw: torch.Generator) -> None:
        """Write the state after `epoch` epochs. Without a path this does nothing."""
        if self.path is None:
            return
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        tensors |= {f"optimiser.{name}": tensor for name, tensor in _flat(optimiser).items()}
        tensors["generator"] = draw.get_state()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(self.path, tensors, {"epoch": epoch, "key": self.key})

    def load(self, model: nn.Module, optimiser: torch.optim.Optimizer, draw: torch.Generator) -> int:
        """Put a saved state back and return how many epochs it has behind it; 0 where there is nothing to resume."""
        if not self.resume or self.path is None or not self.path.exists():
            return 0
        tensors, metadata = load_tensors(self.path)
        if metadata.get("key") != self.key:
            log.warning("%s was made with other settings or data: starting this stage anew", self.path)
            return 0
        model.load_state_dict(_below("model.", tensors))
        _fill(optimiser, _below("optimiser.", tensors))
        draw.set_state(tensors["generator"])
        return int(metadata["epoch"])


def _flat(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's per-parameter tensors as `number.name`. Learning rates follow from the epoch and are not kept."""
    state = optimiser.state_dict()["state"]
    return {
        f"{number}.{name}": value for number, slots in state.items() for name, value in slots.items() if value is not None
    }


def _fill(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    whole = optimiser.state_dict()
    for name, value in tensors.items():
        number, slot = name.split(".", 1)
        whole["state"].setdefault(int(number), {})[slot] = value
    optimiser.load_state_dict(whole)


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

"""The finished pieces of a long run, each a file of its own, so that a killed run goes on where it was."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from twoprong.errors import InputError
from twoprong.evaluation.provenance import origin
from twoprong.results.part import Origin
from twoprong.storage import load_tensors, save_tensors, write_atomic

MADE_BY = "made_by"  # in a file: the source and the libraries that made the piece
Piece = tuple[Mapping[str, Tensor], dict[str, Any]]  # tensors, and numbers that JSON can write


class Pieces:
    """A folder of pieces that belong to one `key`, which names everything they depend on; without a folder, the memory.

    A folder with pieces is only taken with `resume`, and only if they were made under the same key (InputError otherwise):
    nobody's hours are deleted, and no numbers are mixed that belong to two runs. `origins` says what the pieces that were
    read here were made with.
    """

    def __init__(self, folder: Path | None, key: str, resume: bool = False) -> None:
        self.folder = folder
        self.origins: list[Origin] = []
        self.memory: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {}
        if folder is None:
            return
        note = folder / "run.json"
        if note.exists() and not resume:
            raise InputError(f"{folder.parent}: holds an earlier run; go on with it by --resume, or choose another --out")
        if note.exists() and _key(note) != key:
            raise InputError(
                f"{folder}: these results were made with other weights, images or settings; repeat the command they were "
                "made with, or choose another --out"
            )
        self.now = origin()
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(note, lambda file: file.write_text(json.dumps({"key": key}) + "\n", encoding="utf-8"))

    def has(self, name: str) -> bool:
        return name in self.memory if self.folder is None else self._file(self.folder, name).exists()

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A piece that is there."""
        if self.folder is None:
            return self.memory[name]
        tensors, numbers = load_tensors(self._file(self.folder, name))
        unknown = {"commit": None, "twoprong": "unknown", "torch": "unknown"}  # older versions did not note it
        made = Origin.model_validate(numbers.pop(MADE_BY, unknown))
        if made not in self.origins:
            self.origins.append(made)
        return tensors, numbers

    def piece(self, name: str, make: Callable[[], Piece]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The piece called `name`: read if it is there, else made, kept and returned. It is never made twice."""
        if not self.has(name):
            tensors, numbers = make()
            if self.folder is None:  # as a reader of the file would get it
                self.memory[name] = {key: value.cpu() for key, value in tensors.items()}, json.loads(json.dumps(numbers))
            elif not self.has(name):  # another process on the same folder may have been faster: then its piece is taken
                file = self._file(self.folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                save_tensors(file, tensors, {**numbers, MADE_BY: self.now.as_dict()})
        return self.read(name)

    @staticmethod
    def _file(folder: Path, name: str) -> Path:
        return folder / f"{name}.safetensors"


def _key(note: Path) -> Any:
    try:
        return json.loads(note.read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not a note of ours, or a damaged one: no key that could match

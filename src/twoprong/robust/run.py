"""The course of a robust training: epochs, exams on held-out images, the best average kept, a kill survived."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from twoprong.checkpoint import Checkpoint
from twoprong.errors import DataError
from twoprong.models.zoo import ModelSpec, build
from twoprong.robust.trainer import Exam, Trainer
from twoprong.seeds import generator
from twoprong.storage import load_tensors, save_tensors

log = logging.getLogger("twoprong")

CHECKPOINT, BEST, LAST, HISTORY = "checkpoint.safetensors", "best.safetensors", "last.safetensors", "history.jsonl"


@dataclass(frozen=True)
class Mark:
    """After `epoch` epochs: the epochs' mean loss since the last mark, and the held-out images classified correctly."""

    epoch: int
    loss: float
    clean: float
    robust: float

    @property
    def score(self) -> float:
        """What the best epoch is chosen by: a point of clean accuracy is worth a point of robustness.

        Behind a gate that sends images the robust network is unsure of to an accurate one, that is about the rate at which
        one is traded for the other.
        """
        return self.clean + self.robust


def train(
    trainer: Trainer,
    exam: Exam,
    folder: Path,
    key: str,
    resume: bool = False,
    every: int = 5,
    report: Callable[[Mark], None] = lambda mark: None,
) -> list[Mark]:
    """Run a training to its end. In `folder`: a checkpoint, the best and the last average (half precision), the marks.

    Examined every `every` epochs, in the last tenth after every epoch. With `resume` a killed training goes on from its last
    checkpoint, provided `key` (everything it depends on) is the same; half precision does for a checkpoint, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(folder / CHECKPOINT, key, resume)
    done = checkpoint.load(trainer.state, trainer.optimiser, trainer.draw)
    marks = [mark for mark in read_marks(folder) if mark.epoch <= done] if done else []
    epochs, losses = trainer.config.epochs, []
    for epoch in range(done, epochs):
        losses.append(trainer.epoch(epoch))
        if not all(map(torch.isfinite, map(torch.tensor, losses))):
            raise FloatingPointError(f"epoch {epoch + 1}: the loss is {losses[-1]}; lower the learning rate")
        ahead = epochs - epoch - 1
        if ahead % every == 0 or ahead < epochs // 10:
            clean, robust = exam(generator(0, "exam", device=trainer.device))
            mark = Mark(epoch + 1, sum(losses) / len(losses), clean, robust)
            best = max(marks, key=lambda one: one.score, default=None)
            marks, losses = [*marks, mark], []
            save_weights(folder / LAST, trainer.average.model, asdict(mark))
            if best is None or mark.score >= best.score:
                save_weights(folder / BEST, trainer.average.model, asdict(mark))
            (folder / HISTORY).write_text("".join(json.dumps(asdict(one)) + "\n" for one in marks), encoding="utf-8")
            report(mark)
        if ahead % every == 0:
            checkpoint.save(epoch + 1, trainer.state, trainer.optimiser, trainer.draw)
    return marks


def read_marks(folder: Path) -> list[Mark]:
    file = folder / HISTORY
    return [Mark(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def save_weights(path: Path, model: nn.Module, about: dict[str, object]) -> None:
    """A network of ours in half precision, with how to build it and whatever else should stand beside it."""
    spec = model.spec
    if not isinstance(spec, ModelSpec):
        raise TypeError("only networks made by `build` can be saved")
    tensors = {name: value.half() if value.is_floating_point() else value for name, value in model.state_dict().items()}
    save_tensors(path, tensors, {**about, "model": asdict(spec)})


def load_weights(path: Path) -> nn.Module:
    """What `save_weights` wrote, as a float32 network in eval mode, frozen. Raises DataError for anything else."""
    tensors, about = load_tensors(path)
    try:
        model = build(**about["model"])
        model.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{path}: expected the weights of a network of ours ({error})") from error
    return model.eval().requires_grad_(False)


def halved(path: Path, out: Path) -> None:
    """A checkpoint in half precision, small enough to be carried; a training resumed from it goes on, if not to the bit."""
    tensors, about = load_tensors(path)
    save_tensors(
        out, {name: value.half() if value.dtype == torch.float32 else value for name, value in tensors.items()}, about
    )

"""A robust network from beginning to end, for fits and for the paper's tables."""

import tempfile
from contextlib import nullcontext
from pathlib import Path

from torch import nn

from twoprong.config import AttackConfig, ClassifierConfig
from twoprong.data.tensors import Labelled
from twoprong.models.layout import channels_last
from twoprong.models.precision import Precision, compiler_for
from twoprong.progress import Progress, silent
from twoprong.robust.run import BEST, Mark, load_weights, train
from twoprong.robust.settings import RobustConfig
from twoprong.robust.trainer import Exam, Trainer
from twoprong.storage import fingerprint

MARKS = 20  # examinations in a training, besides those of its last tenth


def train_robust(
    config: RobustConfig,
    learn: Labelled,
    held_out: Labelled,
    classes: int,
    seed: int,
    helper: nn.Module | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress = silent,
    precision: Precision = "fp32",
    stage: str = "robust network",
) -> nn.Module:
    """The network of the epoch that does best on `held_out`, clean and under PGD-20; in eval mode, frozen.

    With `folder` its checkpoints go there, and `resume` continues a killed training to the same result.
    """
    compiler = compiler_for(precision, learn.images)
    trainer = Trainer(config, learn, classes, seed, helper, precision, compiler)
    exam = Exam(trainer.average.model, held_out, config.attack, trainer.size, precision, compiler)
    images = [learn.images, learn.labels, held_out.images, held_out.labels]
    given = [] if helper is None else [helper]
    key = fingerprint(*images, *given, config.model_dump(), seed, learn.images.device.type, precision)

    def report(mark: Mark) -> None:
        note = f"held out: {mark.clean:.1%} clean, {mark.robust:.1%} under PGD-20"
        progress(stage, mark.epoch, config.epochs, note)

    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        train(trainer, exam, Path(place), key, resume, max(1, config.epochs // MARKS), report)
        model = load_weights(Path(place) / BEST)
    return channels_last(model.to(learn.images.device))


def as_classifier(method: str, name: str, classifier: ClassifierConfig, attack: AttackConfig) -> RobustConfig:
    """A named classifier trained by one of METHODS as long, and with the rates, that an ordinary training would take."""
    loss, _, perturbed = method.partition("-")
    return RobustConfig.model_validate(
        {
            "model": name,
            "method": loss,
            "awp": RobustConfig().awp if perturbed else 0.0,
            "epochs": classifier.epochs,
            "batch_size": classifier.batch_size,
            "lr": classifier.lr,
            "weight_decay": classifier.weight_decay,
            "augment": "crop" if classifier.augment else "none",
            "early_until": 0.0,
            "attack": attack,
        }
    )

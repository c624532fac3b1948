"""Classifiers, defences and attacked batches for experiments: each made once, kept under a key of all it depends on."""

import copy
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from twoprong.attacks import Attack
from twoprong.attacks.base import REVISION, Model
from twoprong.config import FitConfig
from twoprong.data.splits import split
from twoprong.data.tensors import ImageData, Labelled
from twoprong.defense import Defense, load
from twoprong.errors import InputError
from twoprong.evaluation.accelerated import accelerated
from twoprong.evaluation.pieces import Pieces
from twoprong.models.features import Features
from twoprong.models.precision import Precision
from twoprong.models.train import accuracy
from twoprong.progress import Progress, silent
from twoprong.recipe import CHECKPOINTS, fit, train_named
from twoprong.reproduce.tables import Scale, Spec
from twoprong.results.part import Origin
from twoprong.robust.train import as_classifier, train_robust
from twoprong.seeds import generator
from twoprong.storage import fingerprint

Measured = Defense | nn.Module  # what is measured: a defence, or a classifier alone


@dataclass(frozen=True)
class Crafted:
    """The attacked form of a batch of images, and the seconds it took."""

    clean: Labelled
    images: Tensor
    seconds: float


class Artifacts:
    """Makes what a cell needs, or finds it in `folder`: names there are digests, so several experiments may share it.

    `trained(name)` gives the protected classifier where it is not to be trained here, `surrogates` those that attacks are
    made on, by name; `held_out` are images that the protected one has not seen, for reference and calibration. Training and
    attacks compute in `precision`; scores are float32.
    """

    def __init__(
        self,
        folder: Path,
        data: ImageData,
        scale: Scale,
        seed: int,
        trained: Callable[[str], nn.Module] | None = None,
        surrogates: Mapping[str, nn.Module] = MappingProxyType({}),
        held_out: Labelled | None = None,
        precision: Precision = "fp32",
        progress: Progress = silent,
    ) -> None:
        self.folder, self.data, self.scale, self.seed = folder, data, scale, seed
        self.trained, self.surrogates, self.held_out = trained, surrogates, held_out
        self.precision, self.progress = precision, progress
        parts = [data.train, *([held_out] if held_out is not None else [])]
        self.data_key = fingerprint(*(tensor for part in parts for tensor in (part.images, part.labels)))
        self.origins: list[Origin] = []  # what attacked batches were made with
        self.saved: set[Path] = set()  # bundles that were written for the user, in this run
        self._made: dict[str, Any] = {}
        self._latest: tuple[Any, list[Crafted]] | None = None
        self._quick: tuple[Measured, Model] | None = None

    def given(self, name: str) -> nn.Module:
        """The ready-made classifier called `name`."""
        assert self.trained is not None
        if name not in self._made:
            self._made[name] = self.trained(name)
        return cast(nn.Module, self._made[name])

    def measured(self, spec: Spec) -> Measured:
        """What the cell measures."""
        parts = {"classifier", "robust", "preset", "set", "extractor", "threshold", "bare", "fresh"}
        key = fingerprint(spec.model_dump(include=parts))
        if key not in self._made:
            self._made[key] = self._protected(spec)[0] if spec.bare else self.defense(spec)
        return cast(Measured, self._made[key])

    def surrogate(self, spec: Spec) -> nn.Module:
        """The classifier that a transfer attack is made on: given, or of another seed, so never the protected one itself."""
        assert spec.surrogate is not None
        if (given := self.surrogates.get(spec.surrogate)) is not None:
            if fingerprint(given) == fingerprint(self._protected(spec)[0]):
                raise InputError(
                    f"--surrogate-weights {spec.surrogate}: expected other weights than the protected classifier's"
                )
            return given
        config = self.scale.config(spec, self.seed)
        return self._classifier(spec.surrogate, config.model_copy(update={"seed": self.seed + 1}), None)[0]

    def surrogate_accuracy(self, spec: Spec) -> float:
        """What the surrogate reads of the clean test images: attacks made on one that reads little say little."""
        surrogate = self.surrogate(spec)
        key = fingerprint("accuracy", surrogate)
        if key not in self._made:
            self._made[key] = accuracy(surrogate, self.data.test)
        return cast(float, self._made[key])

    def defense(self, spec: Spec) -> Defense:
        """The fitted defence; its `about` says how long the fit took. Threshold and rescue cost no fit of their own."""
        asked = self.scale.config(spec, self.seed)
        config = asked.model_copy(update={"rescue": "batch"})
        classifier, work = self._protected(spec)
        named = spec.extractor or config.detector.extractor
        others = [self._classifier(named, config, None)[0]] if named else []
        settings = [config.model_dump(), REVISION]  # a defence is fitted to what the attack finds
        features = Features(others[0]) if others else None
        bundles = [
            self.folder / "bundles" / fingerprint(classifier, self.data_key, settings, fresh, self.precision, *others)[:16]
            for fresh in (spec.fresh, True)
        ]
        bundle = next((one for one in bundles if one.exists()), bundles[0])  # one fitted for its seconds is as good
        key = bundle.name
        if key not in self._made:
            if not bundle.exists():
                self._fit(classifier, config, features, None if spec.fresh else work, bundle)
            self._made[key] = load(bundle, classifier, device=self.data.train.images.device)
        made: Defense = self._made[key]
        if asked.rescue != config.rescue:
            changed = made.config.model_copy(update={"rescue": asked.rescue})
            made = Defense(**vars(replace(made.parts, config=changed)))
        if spec.threshold is None:
            return made
        detector = config.detector.model_copy(update={"threshold": spec.threshold})
        test = copy.deepcopy(made.detector)
        test.calibrate(test.reference, detector, self.seed)
        changed = made.config.model_copy(update={"detector": detector})
        return Defense(**vars(replace(made.parts, detector=test, config=changed)))

    def attacked(self, spec: Spec, measured: Measured, part: Labelled) -> list[Crafted]:
        """The images in order, in batches, each attacked as a whole; what does not fill a last batch is left out."""
        asked = (spec.model_copy(update={"share": None}), measured, part.images.shape)
        if self._latest is None or self._latest[0] != asked:  # the cells of a row often differ in the share only
            self._latest = asked, self._attacked(spec, measured, part)
        return self._latest[1]

    def _attacked(self, spec: Spec, measured: Measured, part: Labelled) -> list[Crafted]:
        target = measured if spec.surrogate is None else self.surrogate(spec)
        attack = self.scale.attack(spec)
        known = target.config.model_dump() if isinstance(target, Defense) else None
        size = min(spec.batch_size, len(part))
        settings = [known, spec.attack, asdict(attack), REVISION, size, self.seed, self.precision]
        key = fingerprint(target, settings, part.images, part.labels)
        store = Pieces(self.folder / "attacked" / key[:16], key, resume=True)
        batches = [part[start : start + size] for start in range(0, len(part) - size + 1, size)]
        if self._quick is None or self._quick[0] is not target:  # to compile it again would take longer than many an attack
            self._quick = target, accelerated(target, self.precision, part.images)
        quick, made = self._quick[1], []
        for number, batch in enumerate(batches):
            tensors, numbers = store.piece(f"{number:05d}", lambda n=number, b=batch: self._craft(attack, quick, b, n))  # type: ignore[misc]
            made.append(Crafted(batch, tensors["images"].to(batch.images.device), numbers["seconds"]))
            self.progress("attack", number + 1, len(batches), spec.attack)
        self.origins += store.origins
        return made

    def _craft(
        self, attack: Attack, target: Model, batch: Labelled, number: int
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        start, device = time.perf_counter(), batch.images.device
        draw = generator(self.seed, "attack", number, device=device)
        found = attack(target, batch.images, batch.labels, draw).images
        return {"images": found}, {"seconds": time.perf_counter() - start}

    def _protected(self, spec: Spec) -> tuple[nn.Module, Path]:
        return self._classifier(spec.classifier, self.scale.config(spec, self.seed), spec.robust, protected=True)

    def _classifier(
        self, name: str, config: FitConfig, robust: str | None, protected: bool = False
    ) -> tuple[nn.Module, Path]:
        """A classifier and the folder of its checkpoints and crafted examples."""
        if protected and robust is None and self.trained is not None:
            return self.given(name), self.folder / "classifiers" / fingerprint(self.given(name))[:16]
        settings = [config.classifier.model_dump(), config.splits.model_dump(), config.seed, self.precision]
        attack = robust and [config.attack.model_dump(), REVISION]
        key = fingerprint(name, robust, attack, settings, self.data_key)[:16]
        work = self.folder / "classifiers" / key
        if key not in self._made:
            classes = len(self.data.classes)
            if robust is None:
                self._made[key] = train_named(
                    name, self.data.train, classes, config, work, True, self.progress, self.precision
                )
            else:
                parts, folder = split(self.data.train, config.splits, config.seed), work / CHECKPOINTS / "robust"
                self._made[key] = train_robust(
                    as_classifier(robust, name, config.classifier, config.attack),
                    parts.denoiser,
                    parts.kernel,
                    classes,
                    config.seed,
                    folder=folder,
                    resume=True,
                    progress=self.progress,
                    precision=self.precision,
                )
        return self._made[key], work

    def _fit(
        self, classifier: nn.Module, config: FitConfig, features: Features | None, work: Path | None, bundle: Path
    ) -> None:
        """Fit, note what it cost, and keep the bundle. With `work` a killed fit goes on, and its seconds are the rest's."""
        device = self.data.train.images.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        start = time.perf_counter()
        defense = fit(
            classifier,
            self.data.train,
            config=config,
            features=features,
            held_out=self.held_out,
            work=work,
            resume=True,
            progress=self.progress,
            precision=self.precision,
            force=True,  # a reproduction measures what it is given, and what its scale has time to train
            measure=False,
        )
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        defense.about |= {
            "classes": list(self.data.classes),
            "data": self.data.name,
            "fit_seconds": time.perf_counter() - start,
            "fit_memory_mb": peak_memory(device),
        }
        bundle.parent.mkdir(parents=True, exist_ok=True)
        defense.save(bundle)
        if work is not None:
            (work / CHECKPOINTS / "denoiser.safetensors").unlink(missing_ok=True)


def peak_memory(device: torch.device) -> float:
    """MB: what torch held at most on a GPU since its count was reset; on a CPU, the process at its largest."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource  # Unix only

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def variant(spec: Spec) -> str:
    """A name for the cell's defence that can be a directory's."""
    words: list[object] = [
        spec.classifier,
        spec.robust,
        spec.preset,
        *spec.set,
        spec.extractor and f"features-of-{spec.extractor}",
    ]
    words += [spec.threshold is not None and f"threshold={spec.threshold:g}", spec.fresh and "fresh"]
    return re.sub(r"[^\w.=-]+", "-", "-".join(str(word) for word in words if word))

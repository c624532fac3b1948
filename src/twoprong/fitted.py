"""What a fit has bought: the finished defence on images it has not learned from, clean and attacked as in its settings."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from twoprong.attacks.gate import Gate
from twoprong.data.tensors import Labelled
from twoprong.defense import Defense
from twoprong.measure import partition, wilson
from twoprong.models.train import accuracy
from twoprong.seeds import generator
from twoprong.whitebox import OneRoute

ATTACKED = 500  # at most: crafting takes time
BATCHES = 10  # as many as few images give; an interval of a rate over one batch says nothing
LARGEST = 100
KNOWING = 200  # images at most that an attacker who knows everything is tried on
FLAGGED = {"denoiser": "denoised", "robust": "robust network alone"}  # kinds of flagged routes in words

log = logging.getLogger("twoprong")


@dataclass(frozen=True)
class Fitted:
    """Counts and accuracies. `images` says what they were measured on; `batch_size` is that of all batches.

    Of clean and of attacked batches: how many, how many were flagged; accuracy of the bare classifier, of the flagged route
    (`denoised`) for every batch, and of the defence, which chooses. `flagged` is the kind of that route.
    """

    images: str
    batch_size: int
    clean_batches: int
    false_alarms: int
    clean_bare: float
    clean_denoised: float
    clean_defended: float
    attacked_batches: int
    found: int
    attacked_bare: float
    attacked_denoised: float
    attacked_defended: float
    flagged: str = "denoiser"

    @property
    def harmful(self) -> bool:
        """Whether attacked images are classified worse with the denoiser than without."""
        return self.attacked_denoised < self.attacked_bare

    def facts(self) -> dict[str, str]:
        """The numbers in words, for the model card and `twoprong inspect`."""
        clean, attacked = f"{self.clean_batches} clean", f"{self.attacked_batches} attacked"
        three = f"bare, {FLAGGED.get(self.flagged, self.flagged)}, defended"
        each = f"batches of {self.batch_size}"
        low, high = wilson(self.false_alarms, self.clean_batches)
        least, most = wilson(self.found, self.attacked_batches)
        facts = {
            "measured on": self.images,
            f"clean accuracy {three}": _three(self.clean_bare, self.clean_denoised, self.clean_defended),
            f"false alarms among {clean} {each}": f"{self.false_alarms / self.clean_batches:.1%} ({low:.1%} to {high:.1%})",
            f"accuracy under the attack of the settings (it does not know the defence), {three}": _three(
                self.attacked_bare, self.attacked_denoised, self.attacked_defended
            ),
            f"found among {attacked} {each}": f"{self.found / self.attacked_batches:.1%} ({least:.1%} to {most:.1%})",
        }
        return facts | ({"warning": "; ".join(self.warnings)} if self.warnings else {})

    @property
    def warnings(self) -> list[str]:
        """What its user must hear."""
        said = [self._harm] if self.harmful else []
        if not self.found:
            said.append(
                f"the test found none of {self.attacked_batches} attacked batches; leave detector.threshold out, if it is "
                "set, so that thresholds are calibrated, or fit on more images"
            )
        return said

    @property
    def _harm(self) -> str:
        advice = (
            "train it longer (denoiser.epochs), on more images, or with less noise (denoiser.sigma)"
            if self.flagged == "denoiser"
            else "train it longer (robust.epochs), or on more images"
        )
        name = "robust network" if self.flagged == "robust" else self.flagged
        return (
            f"the {name} does more harm than good: of attacked images {self.attacked_denoised:.1%} are classified "
            f"correctly with it and {self.attacked_bare:.1%} without; {advice}"
        )

    def as_dict(self) -> dict[str, Any]:
        rates = {
            "false_alarm_rate": self.false_alarms / self.clean_batches,
            "found_rate": self.found / self.attacked_batches,
        }
        intervals = {
            "false_alarm_interval": list(wilson(self.false_alarms, self.clean_batches)),
            "found_interval": list(wilson(self.found, self.attacked_batches)),
        }
        return asdict(self) | rates | intervals | {"denoiser_harms": self.harmful}


def measure_fit(
    defense: Defense, part: Labelled, images: str, craft: Callable[[Labelled], Tensor], seed: int
) -> Fitted | None:
    """Measure on `part`, which `images` describes; None where it has too few for one batch. Warns of a harmful denoiser,
    and of a test that finds nothing."""
    sizes = defense.detector.batch_sizes
    size = max(sizes[0], min(LARGEST, sizes[-1], len(part) // BATCHES))
    if len(part) < size:
        return None
    attacked = _drawn(part, max(size, ATTACKED), seed)
    attacked = Labelled(craft(attacked), attacked.labels)
    draw = generator(seed, "fit summary", device=part.images.device)
    clean_batches, false_alarms, clean_denoised, clean_defended = _through(defense, part, size, draw)
    attacked_batches, found, denoised, defended = _through(defense, attacked, size, draw)
    fitted = Fitted(
        images=f"{len(part):,} {images}",
        batch_size=size,
        clean_batches=clean_batches,
        false_alarms=false_alarms,
        clean_bare=accuracy(defense.classifier, part),
        clean_denoised=clean_denoised,
        clean_defended=clean_defended,
        attacked_batches=attacked_batches,
        found=found,
        attacked_bare=accuracy(defense.classifier, attacked),
        attacked_denoised=denoised,
        attacked_defended=defended,
        flagged=defense.flagged.kind,
    )
    for warning in fitted.warnings:
        log.warning(warning)
    return fitted


def measure_layers(defense: Defense, part: Labelled, seed: int) -> dict[str, str]:
    """What an attacker who knows the networks leaves of each route without the test, in words; `gate`, a short run."""
    some, attack = _drawn(part, KNOWING, seed), defense.config.attack
    short = Gate(eps=attack.eps, norm=attack.norm, steps=20, targets=3)
    draw = generator(seed, "fit layers", device=part.images.device)
    robust, gate = (
        short(OneRoute(defense, role), some.images, some.labels, draw).accuracy for role in ("flagged", "passing")
    )
    name = f"accuracy under a short attack that knows everything ({len(some)} images), robust network alone, gate"
    return {name: f"{robust:.2%}, {gate:.2%}"}


def _drawn(part: Labelled, count: int, seed: int) -> Labelled:
    """At most so many images in random order: the first ones of a sorted set are of one class, which the test flags."""
    device = part.images.device
    return part[torch.randperm(len(part), generator=generator(seed, "fit images", device=device), device=device)[:count]]


@torch.no_grad()
def _through(defense: Defense, data: Labelled, size: int, draw: torch.Generator) -> tuple[int, int, float, float]:
    """Batches, how many are flagged, accuracy with every batch on the flagged route, and as the defence decides."""
    batches = partition(len(data), size, draw)
    flagged = denoised = defended = 0
    for batch in batches:
        images, labels = data.images[batch], data.labels[batch]
        decision = defense(images, draw)
        flagged += decision.adversarial
        defended += int((decision.labels == labels).sum())
        denoised += int((defense.flagged.logits(images, 1, draw)[0].argmax(1) == labels).sum())
    count = len(batches) * size
    return len(batches), flagged, denoised / count, defended / count


def _three(bare: float, denoised: float, defended: float) -> str:
    return f"{bare:.2%}, {denoised:.2%}, {defended:.2%}"

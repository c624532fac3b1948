"""The last part of the demo: batches of photographs, clean and attacked, through the bundles that come with the package."""

from dataclasses import asdict, dataclass, replace

import torch

from twoprong.attacks import PGD
from twoprong.data.sources import load_data
from twoprong.data.tensors import ImageData, Labelled
from twoprong.decision import Decision
from twoprong.defense import Defense, load
from twoprong.demo.knowing import knowing
from twoprong.models.features import full
from twoprong.progress import Progress, silent
from twoprong.report import suspects
from twoprong.report.demo import Shown
from twoprong.results.demo import DemoPhotographs, PhotographBatch
from twoprong.seeds import generator
from twoprong.shipped import names

NAME, HARDENED = "cifar10-small", "cifar10-small-hardened"
BATCH_SIZE = 50
BATCHES = 5  # clean ones, and as many attacked ones of other images
SHOWN = 8
MIXED = 10  # attacked images in the batch whose suspects are shown
ATTACK = PGD(eps=8 / 255, step=2 / 255, steps=10)


@dataclass(frozen=True, eq=False)
class Photographs:
    """`results` go into results.json; `shown` are the first images of an attacked batch, and what became of them."""

    results: DemoPhotographs
    shown: Shown


def packaged(seed: int, progress: Progress = silent) -> Photographs | None:
    """The photographs that come with the package, through its bundles; None where the package is without them."""
    if NAME not in names():
        return None
    data, defenses = load_data(NAME), {name: load(name) for name in (NAME, HARDENED) if name in names()}
    found = photographs(defenses[NAME], data, seed, progress)
    known = knowing(defenses, data.test, seed, progress)
    return replace(found, results=found.results.model_copy(update={"knowing": known}))


def photographs(defense: Defense, data: ImageData, seed: int, progress: Progress = silent) -> Photographs:
    """Batches of test images, no image in two of them: five are left clean, PGD on the bare classifier attacks the others.

    The numbers are a function of the seed and, by rounding, of the number of threads.
    """
    order = torch.randperm(len(data.test), generator=generator(seed, "photographs"))
    parts = order.split(BATCH_SIZE)[: 2 * BATCHES]
    batches = []
    for number, index in enumerate(parts):
        clean, attacked = data.test[index], number >= BATCHES
        images = clean.images
        if attacked:
            draw = generator(seed, "photographs attack", number)
            images = ATTACK(defense.classifier, images, clean.labels, draw).images
        decision = defense(images, generator(seed, "photographs noise", number))
        batches.append(_row(defense, Labelled(images, clean.labels), decision, attacked))
        if number <= BATCHES:  # the first attacked batch is the one that is shown
            seen = {"clean": clean.images, "attacked": images, "as classified": decision.images}
            rows, labels = {name: some[:SHOWN] for name, some in seen.items()}, clean.labels[:SHOWN]
            mixed = images[:MIXED], clean.images[MIXED:]
        progress("photographs", number + 1, len(parts))
    results = DemoPhotographs(
        bundle=NAME,
        data=data.name,
        batch_size=BATCH_SIZE,
        attack={"name": "pgd", "threat_model": "bare", **asdict(ATTACK)},
        batches=batches,
        knowing=[],
    )
    blamed = suspects.shown(defense, *mixed, generator(seed, "photographs suspects"))
    return Photographs(results, Shown(rows, labels, data.classes, defense, blamed))


@torch.no_grad()
def _row(defense: Defense, batch: Labelled, decision: Decision, attacked: bool) -> PhotographBatch:
    """One batch: what the test said, and the shares classified correctly by the classifier alone and behind the defence."""
    bare = full(defense.classifier(batch.images)) if decision.adversarial else decision.logits
    return PhotographBatch(
        attacked=attacked,
        flagged=decision.adversarial,
        statistic=decision.statistic,
        threshold=decision.threshold,
        bare=(bare.argmax(1) == batch.labels).double().mean().item(),
        defended=(decision.labels == batch.labels).double().mean().item(),
    )

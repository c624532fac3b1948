"""What an attacker who knows everything leaves of a few photographs, behind each defence that comes with the package."""

from collections.abc import Mapping
from dataclasses import asdict

import torch

from twoprong.attacks.base import Attack
from twoprong.attacks.evade import Evade
from twoprong.attacks.gate import Gate
from twoprong.data.tensors import Labelled
from twoprong.defense import Defense
from twoprong.progress import Progress, silent
from twoprong.results.demo import KnowingAttack
from twoprong.seeds import generator

IMAGES = 10
EPS = 8 / 255
# Short ones that know of the mechanism: past the test to the bare classifier, and past both networks behind the gate.
PAPER: tuple[str, Attack] = ("evade", Evade(eps=EPS, steps=40, penalties=(10.0, 100.0)))
HARDENED: tuple[str, Attack] = ("gate", Gate(eps=EPS, steps=10, targets=1))


def knowing(defenses: Mapping[str, Defense], test: Labelled, seed: int, progress: Progress = silent) -> list[KnowingAttack]:
    """One batch of test images, the same for every defence, attacked by what is made for its kind. Upper bounds: the attacks
    are short."""
    part = test[torch.randperm(len(test), generator=generator(seed, "knowing"))[:IMAGES]]
    found = []
    for number, (bundle, defense) in enumerate(defenses.items()):
        name, attack = HARDENED if defense.layered else PAPER
        clean = defense(part.images, generator(seed, "knowing clean", number))
        result = attack(defense, part.images, part.labels, generator(seed, "knowing attack", number))
        found.append(
            KnowingAttack(
                bundle=bundle,
                attack={"name": name, "threat_model": "adaptive", **asdict(attack)},
                images=len(part),
                clean=(clean.labels == part.labels).double().mean().item(),
                attacked=result.accuracy,
                flagged=result.flagged,
            )
        )
        progress("attacker who knows", number + 1, len(defenses))
    return found

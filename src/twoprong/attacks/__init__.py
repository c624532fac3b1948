"""Attacks on whole batches: one file each, one registry."""

from twoprong.attacks.base import Attack, AttackResult
from twoprong.attacks.fgsm import FGSM
from twoprong.attacks.mma import MMA
from twoprong.attacks.norms import NORMS
from twoprong.attacks.pgd import PGD

ATTACKS: dict[str, type[Attack]] = {"fgsm": FGSM, "pgd": PGD, "mma": MMA}

__all__ = ["ATTACKS", "FGSM", "MMA", "NORMS", "PGD", "Attack", "AttackResult"]

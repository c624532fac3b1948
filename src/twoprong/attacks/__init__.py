"""Attacks on whole batches: one file each, one registry. `docs/attacks.md` says what each is for."""

from twoprong.attacks.alarm import Alarm
from twoprong.attacks.apgd import APGD, APGDDLR, APGDT
from twoprong.attacks.authors import Authors
from twoprong.attacks.autoattack import AutoAttack, AutoAttackRand
from twoprong.attacks.base import Attack, AttackResult
from twoprong.attacks.bpda import BPDA
from twoprong.attacks.cw import CW
from twoprong.attacks.evade import Evade
from twoprong.attacks.fab import FABT
from twoprong.attacks.fgsm import FGSM
from twoprong.attacks.gate import Gate
from twoprong.attacks.greedy import Greedy
from twoprong.attacks.match import Match
from twoprong.attacks.mma import MMA
from twoprong.attacks.noise import Noise
from twoprong.attacks.norms import NORMS
from twoprong.attacks.paper import Paper
from twoprong.attacks.partial import Partial
from twoprong.attacks.pgd import BIM, EOTPGD, PGD
from twoprong.attacks.route import RouteAttack
from twoprong.attacks.square import Square
from twoprong.attacks.target import Target
from twoprong.attacks.unblamed import Unblamed

ATTACKS: dict[str, type[Attack]] = {
    "noise": Noise,
    "fgsm": FGSM,
    "bim": BIM,
    "pgd": PGD,
    "pgd-eot": EOTPGD,
    "mma": MMA,
    "cw": CW,
    "apgd-ce": APGD,
    "apgd-dlr": APGDDLR,
    "apgd-t": APGDT,
    "fab-t": FABT,
    "square": Square,
    "autoattack": AutoAttack,
    "autoattack-rand": AutoAttackRand,
    "bpda-eot": BPDA,
    "paper": Paper,
    "authors": Authors,
    "route": RouteAttack,
    "evade": Evade,
    "gate": Gate,
    "greedy": Greedy,
    "match": Match,
    "unblamed": Unblamed,
    "alarm": Alarm,
}

__all__ = ["ATTACKS", "FGSM", "MMA", "NORMS", "PGD", "Attack", "AttackResult", "Partial", "Target"]

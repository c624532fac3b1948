"""What an evaluation runs: attacks by threat model, for a look in minutes, the paper's tables, or our own claim."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from twoprong.attacks import ATTACKS
from twoprong.attacks.base import Attack
from twoprong.attacks.gate import ORDERS
from twoprong.attacks.partial import Partial
from twoprong.choices import check_choice
from twoprong.evaluation.baselines.magnet import EvadeEach

KNOWS_ALL = 3
KNOWLEDGE = {"noise": 0, "transfer": 1, "bare": 2, "paper": KNOWS_ALL, "adaptive": KNOWS_ALL}
THREATS = (*KNOWLEDGE, "partial", "disrupt")
FACTORS = (0.125, 0.25, 0.5, 0.75, 1.5, 2.0)  # of the headline budget: 1, 2, 4, 6, 12 and 16/255 beside 8/255
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of a batch's slots
HIDING: dict[str, Any] = {"steps": 100, "penalties": (1.0, 10.0, 100.0)}  # in 40 steps few photographs get past the test
SCORING = 15.0  # passes of an attacked batch before all subjects
PASSES = {
    "route": 3.0,
    "evade": 4.0,
    "match": 3.0,
    "gate": 12.0,
    "greedy": 3.0,
    "unblamed": 14.0,
    "autoattack": 30.0,
    "autoattack-rand": 2.0,
    "cw": 5.0,
}

ANY_IMAGE = 1.0  # a budget (linf) that lets an attacker send whatever he likes


@dataclass(frozen=True)
class Item:
    """One attack of a protocol. `target` is the subject it is aimed at; every subject is scored on what it finds.

    `curve` names the line of the accuracy-ε figure the item is a point of; `keep` keeps its images for the detector study.
    """

    name: str
    threat: str
    attack: Attack
    target: str = "defense"
    curve: str | None = None
    keep: bool = False

    @property
    def share(self) -> float | None:
        return self.attack.share if isinstance(self.attack, Partial) else None

    @property
    def key(self) -> str:
        """The registry's name of the attack; of a partial one the attack inside."""
        kind = type(self._inner)
        return next((name for name, known in ATTACKS.items() if known is kind), kind.__name__.lower())

    def settings(self) -> dict[str, Any]:
        return asdict(self._inner)

    @property
    def _inner(self) -> Attack:
        return self.attack.attack if isinstance(self.attack, Partial) else self.attack

    def file(self, batch: int) -> str:
        """The piece of an evaluation that holds one attacked batch."""
        name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in self.name)
        return f"attacks/{name}/{batch:05d}"

    def cost(self) -> float:
        """A rough number of passes per image, scoring included, to estimate the time left."""
        settings = self.settings()
        runs = settings.get("restarts", 1) * len(settings.get("penalties", settings.get("weights", (1,))))
        if self.key == "evade":  # with two losses, and once without a penalty
            runs = 2 * (runs + settings["restarts"])
        last_look = self.key in ("evade", "match", "gate", "unblamed")  # theirs are for that
        draws = 1 if last_look else settings.get("draws", 1)
        return SCORING + settings.get("steps", 1) * runs * draws * PASSES.get(self.key, 1.0)

    @property
    def kind(self) -> str:
        """Items of one kind take about the same time for a unit of cost."""
        return f"{self.key} on {self.target}" + ("" if self.share is None else ", some slots")


@dataclass(frozen=True)
class Setting:
    """The budget, and what there is to attack."""

    eps: float
    norm: str
    subjects: Sequence[str]  # surrogate included, where there is one
    batch_size: int = 100
    large: bool = False  # images above 64 pixels, for which the paper takes 20 steps
    flagged: str = "denoiser"  # the subject that is the flagged route alone, called after its kind
    passing: str | None = None  # that of the passing route alone, where it is more than the classifier
    layered_against: bool = False  # whether the other bundle's passing route is more than its classifier


def protocol_items(protocol: str, setting: Setting) -> list[Item]:
    """The named protocol's attacks. Raises InputError for an unknown name."""
    check_choice("protocol", protocol, PROTOCOLS)
    items = [*PROTOCOLS[protocol](setting), *_layers(protocol, setting)]
    return [item for item in items if item.target in setting.subjects]


def left_out(protocol: str, setting: Setting) -> list[dict[str, str]]:
    """What the protocol has and this run cannot do, with the reason."""
    everybody = replace(setting, subjects=("defense", "bare", setting.flagged, "magnet", "against", "surrogate"))
    wanted = {item.target for item in protocol_items(protocol, everybody)}
    reasons = {
        "surrogate": ("transfer", "no surrogate classifier was given (--surrogate)"),
        "magnet": ("magnet", "no training images were given for its autoencoder"),
    }
    return [
        {"name": name, "why": why}
        for target, (name, why) in reasons.items()
        if target in wanted and target not in setting.subjects
    ]


def _quick(setting: Setting) -> list[Item]:
    make = _Maker(setting)
    return [
        *make.common(),
        make("transfer pgd", "transfer", "pgd", "surrogate", steps=20),
        make("route", "adaptive", "route", steps=20, draws=8),
        make("evade", "adaptive", "evade", **HIDING),
        make(f"pgd-eot on the {setting.flagged}", "adaptive", "pgd-eot", setting.flagged, steps=20, draws=8),
        make("pgd on magnet", "adaptive", "pgd", "magnet", steps=20),
        make("evade on magnet", "adaptive", EvadeEach, "magnet", steps=20),
        make("route on against", "adaptive", "route", "against", steps=20, draws=8),
        make("evade on against", "adaptive", "evade", "against", **HIDING),
    ]


def _layers(protocol: str, setting: Setting) -> list[Item]:
    """What knows of a passing route with more than one network in it; each route is also attacked by itself."""
    if protocol == "paper":
        return []
    make, size = _Maker(setting), setting.batch_size
    efforts: dict[str, dict[str, Any]] = {
        "quick": {"steps": 20, "targets": 3, "restarts": 2},
        "strong": {"steps": 50, "restarts": len(ORDERS)},
    }
    effort = efforts[protocol]
    items = [make("gate on against", "adaptive", "gate", "against", **effort)] if setting.layered_against else []
    if setting.passing is None:
        return items
    items += [
        make("gate" + end, "adaptive", "gate", target, **effort)
        for target, end in [("defense", ""), *((one, f" on the {one}") for one in (setting.passing, setting.flagged))]
    ]
    if protocol != "strong":
        return items
    few: dict[str, Any] = {"steps": 30, "targets": 4, "restarts": 2}
    items.append(make(f"autoattack on the {setting.flagged}", "adaptive", "autoattack", setting.flagged))
    items += [make(f"gate on {slots} of {size}", "partial", "gate", share=slots / size, **few) for slots in _slots(setting)]
    return items + [
        make(f"gate at eps {eps:.4g}", "adaptive", "gate", eps=eps, curve="gate", **few)
        for eps in (factor * setting.eps for factor in (*FACTORS[:4], 1.0, *FACTORS[4:]))
    ]


def _slots(setting: Setting) -> list[int]:
    """How many slots of a batch are attacked; in a small batch some shares are the same."""
    return sorted({max(1, round(share * setting.batch_size)) for share in SHARES})


def _paper(setting: Setting) -> list[Item]:
    make = _Maker(setting)
    steps = 20 if setting.large else 200
    items = make.common()
    for target in ("defense", "against"):
        end = "" if target == "defense" else " on against"
        items += [
            make("paper" + end, "paper", "paper", target, steps=steps, draws=20),
            make("autoattack" + end, "paper", "autoattack-rand", target, steps=100, draws=20),
            make("bpda-eot" + end, "paper", "bpda-eot", target, step=setting.eps / 4, average="logits"),
            make("cw" + end, "paper", "cw", target, steps=200),
        ]
    return [
        *items,
        make(f"pgd-eot on the {setting.flagged}", "paper", "pgd-eot", setting.flagged, steps=steps, draws=20),
        make("pgd on magnet", "adaptive", "pgd", "magnet", steps=steps),
        make("evade on magnet", "adaptive", EvadeEach, "magnet", steps=20),
        make("transfer pgd", "transfer", "pgd", "surrogate", steps=steps),
        make("transfer cw", "transfer", "cw", "surrogate", steps=200),
    ]


def _strong(setting: Setting) -> list[Item]:
    make = _Maker(setting)
    items = [*make.common(), make("pgd-100", "bare", "pgd", "bare", steps=100)]
    for target in ("defense", "against"):
        end = "" if target == "defense" else " on against"
        items += [
            make("paper" + end, "paper", "paper", target, steps=20 if setting.large else 200, draws=20),
            make("route" + end, "adaptive", "route", target, steps=40, draws=20),
            make("evade" + end, "adaptive", "evade", target, steps=100, restarts=2),
            make("greedy" + end, "adaptive", "greedy", target),
            make("match" + end, "adaptive", "match", target, steps=100),
            make("unblamed" + end, "adaptive", "unblamed", target),
            make("square" + end, "adaptive", "square", target, steps=1000),
            make("bpda-eot" + end, "adaptive", "bpda-eot", target),
            make("autoattack" + end, "adaptive", "autoattack-rand", target, steps=50, draws=8),
        ]
    items += [
        make(f"pgd-eot on the {setting.flagged}", "adaptive", "pgd-eot", setting.flagged, steps=100, draws=20),
        # Only hiding helps against a test that refuses: what is flagged fools nobody.
        make("evade on reject", "adaptive", "evade", "reject", steps=100, penalties=(0.1, 1.0, 10.0, 100.0)),
        make("pgd on magnet", "adaptive", "pgd", "magnet", steps=100),
        make("evade on magnet", "adaptive", EvadeEach, "magnet", steps=100),
        make("transfer pgd", "transfer", "pgd", "surrogate", steps=100),
    ]
    size = setting.batch_size
    for slots in _slots(setting):
        held: dict[str, Any] = {"share": slots / size}
        items += [
            make(f"evade on {slots} of {size}", "partial", "evade", **held, **HIDING),
            make(f"greedy on {slots} of {size}", "partial", "greedy", **held),
            make(f"match on {slots} of {size}", "partial", "match", **held),
            make(f"unblamed on {slots} of {size}", "partial", "unblamed", **held),
            make(f"alarm on {slots} of {size}", "disrupt", "alarm", **held),
            make(f"alarm on {slots} of {size}, any image", "disrupt", "alarm", eps=ANY_IMAGE, norm="linf", **held),
        ]
    for factor in (*FACTORS[:4], 1.0, *FACTORS[4:]):
        eps = factor * setting.eps
        items += [
            make(f"evade at eps {eps:.4g}", "adaptive", "evade", eps=eps, curve="evade", **HIDING),
            make(f"match at eps {eps:.4g}", "adaptive", "match", eps=eps, curve="match"),
            make(f"route at eps {eps:.4g}", "adaptive", "route", eps=eps, curve="route", steps=20, draws=8),
        ]
    return items


class _Maker:
    """Items at the setting's budget and norm."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __call__(
        self,
        name: str,
        threat: str,
        attack: str | type[Attack],
        target: str = "defense",
        share: float | None = None,
        curve: str | None = None,
        keep: bool = False,
        **settings: Any,
    ) -> Item:
        budget: dict[str, Any] = {"eps": self.setting.eps, "norm": self.setting.norm}
        made = (ATTACKS[attack] if isinstance(attack, str) else attack)(**budget | settings)
        return Item(name, threat, made if share is None else Partial(attack=made, share=share), target, curve, keep)

    def common(self) -> list[Item]:
        """What every protocol has: noise, and PGD-20 on the bare classifier over the whole range of budgets."""
        line: dict[str, Any] = {"curve": "pgd on the bare classifier", "keep": True, "steps": 20}
        curve = [
            self(f"pgd at eps {eps:.4g}", "bare", "pgd", "bare", eps=eps, **line)
            for eps in (factor * self.setting.eps for factor in FACTORS)
        ]
        return [self("noise", "noise", "noise", "bare"), self("pgd", "bare", "pgd", "bare", **line), *curve]


PROTOCOLS = {"quick": _quick, "paper": _paper, "strong": _strong}

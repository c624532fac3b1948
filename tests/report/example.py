"""Complete results of format 1, small and made up: what the report's tests draw. See docs/results-format.md."""

import base64
import io
import math
import random
from collections.abc import Callable

from PIL import Image

from twoprong.results import EvaluationResults

SIZE, DRAWS, BATCHES, EPS, THRESHOLD = 20, 10, 4, 8 / 255, 0.009
CLASSES = ["cat & dog", "<b>ship</b>", "frog|toad"]
SUBJECTS = ("defense", "bare", "denoiser", "reject", "magnet", "against")
TESTED = ("defense", "reject", "against")  # with a batch test
REFUSING = ("reject", "magnet")
# name, threat model, target, share, then per subject how often an image is right; "flag" is the chance of an alarm
ATTACKS = [
    ("noise", "noise", "bare", None, {"flag": 0.1, "defense": 0.93, "bare": 0.94, "denoiser": 0.88}),
    ("transfer pgd", "transfer", "bare", None, {"flag": 0.9, "defense": 0.81, "bare": 0.44, "denoiser": 0.83}),
    ("bare pgd", "bare", "bare", None, {"flag": 1.0, "defense": 0.80, "bare": 0.01, "denoiser": 0.80}),
    ("paper", "paper", "defense", None, {"flag": 1.0, "defense": 0.62, "bare": 0.12, "denoiser": 0.61}),
    ("route ce|margin", "adaptive", "defense", None, {"flag": 1.0, "defense": 0.41, "bare": 0.30, "denoiser": 0.40}),
    ("evade", "adaptive", "defense", None, {"flag": 0.1, "defense": 0.22, "bare": 0.20, "denoiser": 0.75}),
    ("match", "adaptive", "defense", None, {"flag": 0.0, "defense": 0.30, "bare": 0.28, "denoiser": 0.72}),
    ("evade on against", "adaptive", "against", None, {"flag": 0.3, "defense": 0.52, "bare": 0.25, "denoiser": 0.76}),
    ("route on denoiser", "adaptive", "denoiser", None, {"flag": 1.0, "defense": 0.45, "bare": 0.33, "denoiser": 0.36}),
    ("pgd on magnet", "adaptive", "magnet", None, {"flag": 0.9, "defense": 0.70, "bare": 0.15, "denoiser": 0.79}),
    ("partial 5 %", "partial", "defense", 0.05, {"flag": 0.0, "defense": 0.90, "bare": 0.90, "denoiser": 0.86}),
    ("partial 50 %", "partial", "defense", 0.5, {"flag": 0.4, "defense": 0.66, "bare": 0.58, "denoiser": 0.80}),
    ("disrupt 20 %", "disrupt", "defense", 0.2, {"flag": 0.9, "defense": 0.80, "bare": 0.90, "denoiser": 0.82}),
]


def example(reliable: bool = True, change: Callable[[dict], object] | None = None) -> EvaluationResults:
    """The results, the same at every call; `change` edits their JSON before. Unreliable: one more check has failed."""
    content = _content(reliable)
    if change is not None:
        change(content)
    return EvaluationResults.model_validate(content)


def _content(reliable: bool) -> dict:
    chance = random.Random(7)
    attacks = [_attack(chance, *row) for row in ATTACKS]
    counted = [attack for attack in attacks if attack["in_worst_case"]]
    return {
        "format": 1,
        "kind": "evaluation",
        "reliable": reliable,
        "run": {
            "protocol": "strong",
            "data": None,
            "seed": 3,
            "norm": "linf",
            "eps": EPS,
            "batch_size": SIZE,
            "images": SIZE * BATCHES,
            "draws": DRAWS,
            "precision": "fp32",
            "key": "0f" * 32,
            "command": "twoprong evaluate bundle --data 'a <b> & c' --protocol strong --out results",
            "started": "2026-11-15T12:00:00+00:00",
        },
        "made_with": {
            "twoprong": "0.1.0",
            "torch": "2.13.0",
            "python": "3.11.2",
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "platform": "Linux x86_64",
            "device": "cpu",
            "threads": 1,
        },
        "defense": {
            "classifier": "cnn",
            "classes": CLASSES,
            "data": "a <b> & c",
            "config": {"seed": 0, "detector": {"false_alarm_rate": 0.05}, "denoiser": {"sigma": 0.1}},
            "threshold": THRESHOLD,
        },
        "batches": [
            {"indices": list(range(SIZE * n, SIZE * (n + 1))), "labels": [i % 3 for i in range(SIZE)]}
            for n in range(BATCHES)
        ],
        "clean": {"images": 400, "batches": 20, "subjects": {name: _clean(name) for name in SUBJECTS}},
        "attacks": attacks,
        "not_run": [{"name": "square on <everything>", "why": "it would take longer than the time given"}],
        "worst_case": {name: _worst(counted, name) for name in SUBJECTS},
        "curve": [_point(eps, attack) for attack in ("evade", "route ce|margin", "bare pgd") for eps in (0, 2, 4, 8, 16)],
        "detector": _detector(chance),
        "sanity": _sanity(reliable),
        "pictures": [_picture(attack, label) for attack in ("evade", "bare pgd") for label in (0, 1, 2, 0, 1, 2, 0, 1)],
        "seconds": {"attacks": 3725.4, "curve": 61.2, "detector": 8.04},
    }


def wilson(share: float, count: int) -> list[float]:
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return [max(0.0, middle - half), min(1.0, middle + half)]


def _score(accuracy: float, images: int, flagged: float | None, rejected: float, batches: int, worst: float) -> dict:
    fooled = max(0.0, 1 - accuracy - rejected)
    return {
        "accuracy": accuracy,
        "interval": wilson(accuracy, images),
        "worst_draw": worst,
        "flagged": flagged,
        "flagged_interval": None if flagged is None else wilson(flagged, batches),
        "rejected": rejected,
        "rejected_interval": wilson(rejected, images),
        "fooled": fooled,
        "fooled_interval": wilson(fooled, images),
        "accuracy_accepted": accuracy / (1 - rejected) if rejected < 1 else None,
        "accuracy_accepted_interval": wilson(accuracy, images),
    }


def _clean(name: str) -> dict:
    accuracy = {"bare": 0.9525, "denoiser": 0.885, "magnet": 0.91, "reject": 0.905}.get(name, 0.9475)
    refused = {"reject": 0.05, "magnet": 0.035}.get(name, 0.0)
    return _score(accuracy, 400, 0.05 if name in TESTED else None, refused, 20, accuracy)


def _attack(chance: random.Random, name: str, threat: str, target: str, share: float | None, right: dict) -> dict:
    batches = [_batch(chance, number, share, right) for number in range(BATCHES)]
    slots = None
    if share is not None:
        mine = {"attacked": 0.1, "attacked_interval": wilson(0.1, 10)}
        rest = {"others": right["defense"], "others_interval": wilson(right["defense"], 70)}
        rest |= {"others_clean": 0.95, "others_clean_interval": wilson(0.95, 70)}
        slots = {subject: {**mine, **rest} for subject in SUBJECTS}
    return {
        "name": name,
        "threat_model": threat,
        "attack": name.split(maxsplit=1)[0],
        "target": target,
        "settings": {"steps": 40, "draws": 8, "loss": "ce"},
        "eps": EPS,
        "share": share,
        "in_worst_case": share is None,
        "subjects": {subject: _score_of(batches, subject) for subject in SUBJECTS},
        "slots": slots,
        "seconds": 12.5,
        "queries": 320.0,
        "batches": batches,
    }


def _batch(chance: random.Random, number: int, share: float | None, right: dict) -> dict:
    flagged = chance.random() < right["flag"]
    statistic = THRESHOLD * (chance.uniform(2, 60) if flagged else chance.uniform(-0.4, 0.99))
    subjects = {}
    for subject in SUBJECTS:
        often = right.get(subject, right["defense"])
        correct = [
            chance.choice((0, 1, DRAWS)) if chance.random() < 0.1 else DRAWS * (chance.random() < often) for _ in range(SIZE)
        ]
        refused = [DRAWS * flagged for _ in range(SIZE)] if subject in REFUSING else None
        subjects[subject] = {
            "correct": [0 if flagged and refused else c for c in correct],
            "rejected": refused,
            "by_draw": [sum(correct) / SIZE / DRAWS] * DRAWS,
            "flagged": flagged if subject in TESTED else None,
            "statistic": statistic if subject in TESTED else None,
        }
    slots = None if share is None else list(range(max(1, round(share * SIZE))))
    own = {
        "number": number,
        "seconds": 3.0,
        "queries": 6400,
        "distance": EPS,
        "lowest": 0.0,
        "highest": 1.0,
        "slots": slots,
    }
    return {**own, "subjects": subjects}


def _score_of(batches: list[dict], name: str) -> dict:
    scores = [batch["subjects"][name] for batch in batches]
    images = SIZE * len(scores)
    accuracy = sum(sum(score["correct"]) for score in scores) / images / DRAWS
    flagged = sum(score["flagged"] for score in scores) / len(scores) if name in TESTED else None
    refused = sum(sum(score["rejected"]) for score in scores) / images / DRAWS if name in REFUSING else 0.0
    return _score(accuracy, images, flagged, refused, len(scores), max(0.0, accuracy - 0.03))


def _worst(attacks: list[dict], name: str) -> dict:
    def kept(attack: dict, number: int) -> float:  # not fooled: right or refused
        score = attack["batches"][number]["subjects"][name]
        return (sum(score["correct"]) + sum(score["rejected"] or [])) / SIZE / DRAWS

    chosen = [min(attacks, key=lambda attack: kept(attack, number)) for number in range(BATCHES)]
    share = sum(kept(attack, number) for number, attack in enumerate(chosen)) / BATCHES
    refused = [sum(attack["batches"][number]["subjects"][name]["rejected"] or []) for number, attack in enumerate(chosen)]
    rejected = sum(refused) / SIZE / DRAWS / BATCHES
    return {
        "per_batch": share,
        "per_batch_interval": wilson(share, SIZE * BATCHES),
        "per_sample": share / 2,
        "per_sample_interval": wilson(share / 2, SIZE * BATCHES),
        "rejected": rejected,
        "rejected_interval": wilson(rejected, SIZE * BATCHES),
        "accuracy_accepted": share - rejected,
        "accuracy_accepted_interval": wilson(max(0.0, share - rejected), SIZE * BATCHES),
        "chosen": [attack["name"] for attack in chosen],
    }


def _point(eps: int, attack: str) -> dict:
    pull = {"evade": 0.17, "bare pgd": 0.02}.get(attack, 0.1)
    share = {
        "defense": 0.95 * math.exp(-pull * eps),
        "bare": 0.95 * math.exp(-0.5 * eps),
        "against": 0.9 * math.exp(-0.2 * eps),
    }
    subjects = {name: {"accuracy": value, "interval": wilson(value, SIZE * BATCHES)} for name, value in share.items()}
    return {
        "eps": eps / 255,
        "attack": attack,
        "threat_model": "bare" if attack == "bare pgd" else "adaptive",
        "subjects": subjects,
        "batches": [],
    }


def _rate(rate: float, independent: int, **keys: object) -> dict:
    return {
        **keys,
        "rate": rate,
        "interval": wilson(rate, independent),
        "batches": 5 * independent,
        "independent": independent,
    }


def _judged(rate: float, independent: int, defended: float = 0.9, undefended: float = 0.93, **keys: object) -> dict:
    accuracies = {"defended": defended, "defended_interval": wilson(defended, 80)}
    accuracies |= {"undefended": undefended, "undefended_interval": wilson(undefended, 80)}
    return _rate(rate, independent, **keys) | accuracies


def _detector(chance: random.Random) -> dict:
    sizes, steps = (5, 10, 20, 50), [n / 20 for n in range(21)]
    shares = ((0.0, 0.05), (0.05, 0.08), (0.1, 0.15), (0.2, 0.4), (0.5, 0.93), (1.0, 1.0))
    kinds = (("blur", 0.5), ("blur", 1.0), ("jpeg", 50), ("brightness", 1.2), ("noise", 0.02), ("noise", 0.05))
    return {
        "false_alarm_rate": 0.05,
        "rounds": 5,
        "sizes": [sizes[0], sizes[-1]],
        "false_alarms": [_rate(0.02 + 0.01 * n, 400 // size, size=size) for n, size in enumerate(sizes)],
        "power": {
            "by_size": [_rate(0.4 + 0.2 * n, 80 // size, size=size) for n, size in enumerate(sizes)],
            "by_eps": [_rate(min(1.0, 0.05 + eps / 8), 4, eps=eps / 255) for eps in (1, 2, 4, 8)],
            "by_share": [
                _judged(rate, 4, 0.95 - 0.15 * share, 0.95 * (1 - share), share=share)
                | {"recall": 1.0 if share else None, "false_blame": 0.09, "by_rescue": {"batch": 0.7, "suspects": 0.9}}
                for share, rate in shares
            ],
        },
        "skewed": [_judged(1 - 0.3 * classes, 10, classes=classes, size=SIZE) for classes in (1, 2, 3)],
        "shifted": [_judged(0.1 + 0.15 * n, 10, kind=kind, strength=strength) for n, (kind, strength) in enumerate(kinds)],
        "roc": [
            {"eps": eps / 255, "false_alarms": steps, "power": [x ** (1 / eps) for x in steps], "area": 1 - 1 / (1 + eps)}
            for eps in (2, 8)
        ],
        "statistics": {
            "clean": [chance.gauss(0, 0.003) for _ in range(100)],
            "bare": [chance.gauss(0.3, 0.05) for _ in range(20)],
        },
        "blamed": {
            "picture": _png(90, 0),
            "columns": 10,
            "width": 8,
            "height": 8,
            "attacked": [number < 4 for number in range(SIZE)],
            "suspects": [number in (0, 1, 2, 7) for number in range(SIZE)],
        },
    }


def _sanity(reliable: bool) -> list[dict]:
    rows = [
        ("large eps", "Does accuracy fall to nothing when the budget is large?", "passed", "0.0 % right at ε = 0.5"),
        ("converged", "Do more steps change little?", "not converged", "evade: 22.0 % with 40 steps, 20.5 % with 80"),
        ("transfer", "Is the attack from elsewhere no stronger?", "not applicable", "no surrogate was given"),
    ]
    if not reliable:
        rows.append(("order <weaker>", "Does knowing less never help the attacker?", "failed", "paper < evade & match"))
    return [
        {"name": name, "question": question, "status": status, "detail": detail, "values": {}}
        for name, question, status, detail in rows
    ]


def _png(shade: int, label: int) -> str:
    image = Image.frombytes("L", (8, 8), bytes((shade + 23 * label + 3 * i) % 256 for i in range(64)))
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def _picture(attack: str, label: int) -> dict:
    rows = {"clean": 30, "adversarial": 45, "difference": 120, "denoised": 33}
    says = {"clean": label, "adversarial": (label + 1) % 3, "denoised": label}
    return {
        "attack": attack,
        "label": label,
        "images": {row: _png(shade, label) for row, shade in rows.items()},
        "says": says,
    }

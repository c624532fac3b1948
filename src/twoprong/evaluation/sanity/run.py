"""The sanity checks of an evaluation, in order, and what they are given."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from twoprong.attacks.base import Attack
from twoprong.data.tensors import Labelled
from twoprong.evaluation.clock import Work
from twoprong.evaluation.pieces import Piece
from twoprong.evaluation.protocols import Item
from twoprong.evaluation.sanity import numbers, probes
from twoprong.evaluation.sanity.gradients import check_copy, check_gradients
from twoprong.evaluation.scores import summarise, worst_case
from twoprong.evaluation.session import CHECKS_COST, Session
from twoprong.evaluation.subjects import judge
from twoprong.results.detector import DetectorStudy
from twoprong.results.evaluation import AttackEntry, CurvePoint, Finding
from twoprong.results.scores import BatchScore
from twoprong.seeds import generator


def checked(session: Session) -> Labelled:
    """The images that checks attack."""
    return session.part(0)[: session.plan.checked]


def first_checks(session: Session) -> list[Finding]:
    """What can be checked before anything is attacked."""
    plan, check, copy = session.plan, checked(session), session.targets["defense"]

    def make() -> Piece:
        return _kept(
            probes.unseen(plan.defense, plan.data),
            check_gradients(plan.defense, check, plan.eps, plan.seed),
            *([check_copy(plan.defense, copy, check, plan.eps, plan.seed)] if copy is not plan.defense else []),
            probes.swapped(plan.defense, check, plan.seed),
            probes.large_budget(plan.defense, check, plan.seed),
        )

    return _findings(session, "sanity/first", make)


def last_checks(
    session: Session,
    untouched: Sequence[dict[str, BatchScore]],
    ran: Sequence[tuple[Item, AttackEntry]],
    curve: Sequence[CurvePoint],
    detector: DetectorStudy | None,
) -> list[Finding]:
    """What only the results can tell."""
    plan, check, entries = session.plan, checked(session), [entry for _, entry in ran]
    counted = [(item, entry) for item, entry in ran if entry.in_worst_case]
    mine = [(item, entry) for item, entry in counted if item.target not in ("magnet", "against")]

    def left(entry: AttackEntry) -> float:
        return entry.subjects["defense"].accuracy

    found = []
    by_threat: dict[str, float] = {}
    for threat in dict.fromkeys(entry.threat_model for _, entry in mine):
        case = worst_case([entry for _, entry in mine if entry.threat_model == threat], "defense")
        by_threat |= {} if case is None else {threat: case.per_batch}
    if not counted:
        found.append(numbers.nothing_counts([part.name for part in session.not_run]))
    found.append(numbers.ordered(by_threat, len(session.chosen())))
    targets = {item.curve: item.target for item, _ in ran if item.curve is not None}
    if curve:
        found.append(numbers.monotone(curve, targets, len(session.chosen())))
    noise = next((entry for _, entry in counted if entry.threat_model == "noise"), None)
    if noise is not None:
        clean = {name: summarise([batch[name] for batch in untouched]).accuracy for name in ("defense", "bare")}
        worst = min(entry.subjects["bare"].accuracy for _, entry in counted)
        found.append(numbers.harmless_noise(clean, {name: noise.subjects[name].accuracy for name in clean}, worst))
    found.append(numbers.in_ball(entries))
    if detector is not None:
        found.append(numbers.false_alarms(detector, plan.defense.config.detector.threshold is None))

    def make() -> Piece:
        kept = [item for item, _ in ran if item.keep]
        checks = [probes.consistent(plan.defense, (session.images(item, 0) for item in kept), plan.seed)] if kept else []
        bare = min((entry.subjects["bare"].accuracy for item, entry in counted if item.target == "bare"), default=1.0)
        checks.append(probes.broken(plan.defense, check, plan.eps, plan.norm, plan.seed, bare))
        return _kept(*checks)

    found += _findings(session, "sanity/last", make)
    strongest = min((pair for pair in counted if pair[0].target == "defense"), key=lambda pair: left(pair[1]), default=None)
    if strongest is not None:
        efforts = [strongest[0].attack, *numbers.doubled(strongest[0].attack).values()]
        cost = sum(_cost(session, replace(strongest[0], attack=effort)) for effort in efforts)
        session.clock.expect(Work("convergence", strongest[0].kind, cost))
        found.append(numbers.converged(strongest[0], lambda attack: _score(session, strongest[0], attack, check)))
    return found


def _kept(*checks: Finding) -> Piece:
    """Findings as a piece keeps them."""
    return {}, {"checks": [check.as_dict() for check in checks]}


def _findings(session: Session, name: str, make: Callable[[], Piece]) -> list[Finding]:
    kept = session.piece(name, "sanity checks", CHECKS_COST, make)[1]["checks"]
    return [Finding.model_validate(check) for check in kept]


def _cost(session: Session, item: Item) -> float:
    """Of an attack on the checked images only."""
    return item.cost() * min(1.0, session.plan.checked / session.plan.batch_size)


def _score(session: Session, item: Item, attack: Attack, check: Labelled) -> list[float]:
    """What an attack leaves the defence of the checked images: for each the share of draws in which it is right."""
    plan = session.plan
    changed = replace(item, attack=attack)
    name = "-".join(f"{key}{value}" for key, value in changed.settings().items() if key in ("steps", "draws", "restarts"))

    def make() -> Piece:
        device = check.images.device
        draw = generator(plan.seed, "sanity", "convergence", device=device)
        result = attack(session.targets[item.target], check.images, check.labels, draw)
        draw = generator(plan.seed, "sanity", "convergence score", device=device)
        found = judge(session.subjects["defense"], result.images, check.labels, draw)
        return {}, {"right": [count / len(found.by_draw) for count in found.correct]}

    kept = session.piece(f"sanity/{item.key}-{name}", "convergence", _cost(session, changed), make, "sanity checks")[1]
    return list(kept["right"])

import pytest

from twoprong.attacks.partial import Partial
from twoprong.errors import InputError
from twoprong.evaluation.protocols import FACTORS, KNOWLEDGE, PROTOCOLS, SHARES, Setting, left_out, protocol_items

EVERYBODY = ("defense", "bare", "denoiser", "reject", "magnet", "against", "surrogate")
THREATS = {*KNOWLEDGE, "partial", "disrupt"}


def items(protocol, subjects=EVERYBODY, **settings):
    return protocol_items(protocol, Setting(**{"eps": 8 / 255, "norm": "linf", "subjects": subjects} | settings))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_names_are_unique_and_threat_models_known(protocol):
    found = items(protocol)
    assert len({item.name for item in found}) == len(found)
    assert {item.threat for item in found} <= THREATS
    assert all(item.target in EVERYBODY for item in found)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_what_is_there_is_attacked_and_the_rest_is_said(protocol):
    few = Setting(8 / 255, "linf", ("defense", "bare", "denoiser", "reject"))
    assert {item.target for item in protocol_items(protocol, few)} <= set(few.subjects)
    missing = {entry["name"] for entry in left_out(protocol, few)}
    assert missing == {"magnet", "transfer"}
    assert left_out(protocol, Setting(8 / 255, "linf", EVERYBODY)) == []


def test_quick_is_what_the_page_says():
    found = {item.name: item.settings() for item in items("quick", ("defense", "bare"))}
    assert found["pgd"]["steps"] == 20
    assert (found["route"]["steps"], found["route"]["draws"]) == (20, 8)
    assert found["evade"]["steps"] == 100
    assert "noise" in found


@pytest.mark.parametrize(("large", "steps"), [(False, 200), (True, 20)])
def test_paper_has_the_papers_effort(large, steps):
    found = {item.name: item.settings() for item in items("paper", large=large)}
    assert (found["paper"]["steps"], found["paper"]["draws"]) == (steps, 20)
    assert found["cw"]["steps"] == found["transfer cw"]["steps"] == 200
    assert (found["bpda-eot"]["step"], found["bpda-eot"]["average"]) == (2 / 255, "logits")
    assert "autoattack" in found


def test_strong_has_everything_we_know():
    found = items("strong")
    assert {"route", "evade", "greedy", "match", "square"} <= {item.key for item in found if item.threat == "adaptive"}
    for threat in ("partial", "disrupt"):
        assert {item.share for item in found if item.threat == threat} == set(SHARES)
    assert "evade on reject" in {item.name for item in found}
    adaptive = {item.attack.eps for item in found if item.curve == "evade"}
    assert adaptive == {8 / 255, *(factor * 8 / 255 for factor in FACTORS)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_budget_and_a_norm_reach_every_attack(protocol):
    for item in items(protocol, eps=0.5, norm="l2"):
        inner = item.attack.attack if isinstance(item.attack, Partial) else item.attack
        if "any image" not in item.name:
            assert inner.norm == "l2"
        if item.curve is None and "any image" not in item.name:
            assert inner.eps == 0.5


def test_in_a_small_batch_shares_are_whole_slots_and_none_is_run_twice():
    found = [item for item in items("strong", batch_size=10) if item.threat == "disrupt"]
    assert [item.share for item in found if item.attack.eps < 1] == [0.1, 0.2, 0.5]


def test_a_passing_route_of_several_networks_is_attacked_by_what_knows_it():
    layers = {"subjects": ("defense", "bare", "robust", "gate", "reject"), "flagged": "robust", "passing": "gate"}
    found = {item.name: item for item in items("strong", **layers)}
    aims = {"gate": "defense", "gate on the gate": "gate", "gate on the robust": "robust"}
    assert {name: found[name].target for name in aims} == aims
    assert found["autoattack on the robust"].threat == "adaptive"
    assert {item.share for item in found.values() if item.key == "gate" and item.threat == "partial"} == set(SHARES)
    assert "gate" in {item.name for item in items("quick", **layers)}
    assert not any(item.key == "gate" for item in items("strong"))
    assert not any(item.key == "gate" for item in items("paper", **layers))
    assert [item.target for item in items("strong", layered_against=True) if item.key == "gate"] == ["against"]


def test_an_unknown_protocol_is_refused():
    with pytest.raises(InputError, match="quick, paper, strong"):
        items("easy")


def test_more_effort_costs_more():
    quick = {item.name: item.cost() for item in items("quick")}
    strong = {item.name: item.cost() for item in items("strong")}
    assert quick["noise"] < quick["pgd"] < quick["route"] < strong["route"]

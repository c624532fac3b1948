"""The demo with less training and shorter attacks, as a command; and in another process, without the packaged bundle."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import twoprong as tp
from twoprong.attacks import PGD
from twoprong.attacks.evade import Evade
from twoprong.attacks.greedy import Greedy
from twoprong.attacks.match import Match
from twoprong.attacks.noise import Noise
from twoprong.attacks.paper import Paper
from twoprong.attacks.route import RouteAttack
from twoprong.demo import knowing, photographs
from twoprong.demo import run as module
from twoprong.demo.photographs import SHOWN
from twoprong.presets import PRESETS
from twoprong.seeds import generator

EPOCHS = {"denoiser": 15, "kernel": 50}
ROUNDS, BATCHES, BATCH_SIZE = 6, 2, 25  # of all batches; of photographs, clean and attacked
COMMAND = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_run import shorten
from twoprong.__main__ import main
shorten(setattr)
main()
"""


def shorten(patch):
    usual = PRESETS["digits"]
    short = {name: getattr(usual, name).model_copy(update={"epochs": epochs}) for name, epochs in EPOCHS.items()}
    patch(module, "PRESETS", PRESETS | {"digits": usual.model_copy(update=short)})
    patch(module, "ROUNDS", ROUNDS)
    patch(photographs, "BATCHES", BATCHES)
    patch(photographs, "BATCH_SIZE", BATCH_SIZE)
    patch(photographs, "ATTACK", replace(photographs.ATTACK, steps=4))
    patch(knowing, "IMAGES", 4)
    for name in ("PAPER", "HARDENED"):
        called, attack = getattr(knowing, name)
        patch(knowing, name, (called, replace(attack, steps=2)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-c", COMMAND, "demo", "--out", "first", "--json"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True, timeout=600)
    return folder, json.loads(process.stdout)


def test_the_file_is_what_is_printed_and_every_part_took_its_time(run):
    folder, first = run
    assert json.loads((folder / "first" / "results.json").read_text()) == first
    assert all(first["seconds"][part] > 0 for part in ("train_classifier", "fit", "compare", "photographs"))


def test_the_same_seed_gives_the_same_numbers_in_two_processes_and_without_the_packaged_bundle(run, tmp_path, monkeypatch):
    shorten(monkeypatch.setattr)
    monkeypatch.setattr("twoprong.shipped.HOME", tmp_path / "empty")
    again = module.demo(tmp_path / "out").as_dict()
    assert again["photographs"] is None
    apart = {"photographs": None, "seconds": 0}
    assert again | apart == run[1] | apart
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == again


def test_an_attacker_who_knows_everything_meets_both_modes(run):
    rows = run[1]["photographs"]["knowing"]
    assert [(row["bundle"], row["attack"]["name"]) for row in rows] == [
        ("cifar10-small", "evade"),
        ("cifar10-small-hardened", "gate"),
    ]
    assert all(row["attacked"] <= row["clean"] for row in rows)


def test_photographs_go_through_the_packaged_bundle(run):
    batches = run[1]["photographs"]["batches"]
    clean, attacked = ([row for row in batches if row["attacked"] is kind] for kind in (False, True))
    assert len(clean) == len(attacked) == BATCHES
    assert all(row["bare"] > 0.7 for row in clean)
    assert all(row["bare"] < 0.2 and row["flagged"] for row in attacked)
    assert sum(row["flagged"] for row in clean) < BATCHES  # at a rate of at most one in twenty


def test_it_shows_what_the_method_can_do(run):
    _, results = run
    clean, attacked = results["batches"]["100"]["clean"], results["batches"]["100"]["attacked"]
    assert attacked["bare"] < 0.10
    assert clean["defended"] >= clean["bare"] - 0.01
    assert attacked["flagged"] >= 0.95
    assert attacked["defended"] >= attacked["bare"] + 0.60
    for size in ("100", "25"):
        assert results["batches"][size]["clean"]["flagged"] <= 0.10


def test_the_bundle_it_leaves_serves(run, digits):
    folder, results = run
    decision = tp.load(folder / "first" / "bundle")(digits.test.images[:100])
    assert decision.threshold == results["batches"]["100"]["clean"]["threshold"]


def test_the_report_is_one_file_that_reaches_for_nothing(run):
    folder, _ = run
    page = (folder / "first" / "report.html").read_text()
    assert page.count("<svg") == 4, "two histograms, and two batches with their suspects"
    assert page.count("<img") == page.count("alt=") == 30 + 3 * SHOWN
    reaching = re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*|@import|url\((?!#|data:)[^)]*|<script|<link""", page)
    assert reaching == []


def test_an_attacker_who_knows_the_defence_gets_much_further(run, digits):
    """On one batch of 50, with less effort than by default. Accuracies are means over ten draws of the noise."""
    folder, _ = run
    defense, batch = tp.load(folder / "first" / "bundle"), digits.test[:50]
    eps = defense.config.attack.eps

    def left(attack, target=defense):
        draw = generator(0, type(attack).__name__)
        images = attack(target, batch.images, batch.labels, draw).images
        decisions = [defense(images, draw) for _ in range(10)]
        return sum((d.labels == batch.labels).float().mean().item() for d in decisions) / 10, decisions[0].adversarial

    noise, _ = left(Noise(eps=eps))
    bare, flagged = left(PGD(eps=eps, steps=40), defense.classifier)
    assert flagged
    paper, flagged = left(Paper(eps=eps, steps=40, draws=2))
    assert flagged
    evade, evade_flagged = left(Evade(eps=eps, penalties=(10.0,)))
    match, _ = left(Match(eps=eps, weights=((0.3, 1.0), (3.0, 10.0))))
    greedy, greedy_flagged = left(Greedy(eps=eps, penalties=(0.0, 10.0)))
    route, _ = left(RouteAttack(eps=eps, steps=20, draws=2))
    assert not evade_flagged
    assert not greedy_flagged
    assert min(evade, greedy, match, route) <= paper - 0.30
    for knows_more in (evade, greedy, match, route):
        assert knows_more <= bare + 0.02
    for knows_less in (bare, paper):
        assert knows_less <= noise + 0.02

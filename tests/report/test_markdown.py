import re
import runpy
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from twoprong.report.markdown import to_markdown
from twoprong.report.words import between, budget, duration, percent

example = runpy.run_path(str(Path(__file__).with_name("example.py")))["example"]


def tables(text):
    """Every table as rows of cells, read by an independent parser of GitHub's dialect."""
    found, row = [], None
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            row = []
            found[-1].append(row)
        elif token.type == "inline" and row is not None:
            row.append(
                "".join(child.content for child in token.children if child.type in ("text", "text_special", "code_inline"))
            )
        elif token.type == "table_close":
            row = None
    return found


def test_every_attack_and_every_subject_has_its_row():
    results = example()
    attacks, shares, subjects = tables(to_markdown(results))
    for table in (attacks, shares, subjects):
        assert {len(row) for row in table} == {len(table[0])}
    whole = [attack for attack in results.attacks if attack.slots is None]
    assert [row[1] for row in attacks[1:]] == [attack.name for attack in whole]
    for row, attack in zip(attacks[1:], whole, strict=True):
        mine = attack.subjects["defense"]
        assert row[2:4] == [percent(mine.accuracy), between(mine.interval)]
        assert row[5] == percent(attack.subjects["bare"].accuracy)
    assert len(shares) == 1 + len(results.attacks) - len(whole)
    assert len(subjects) == 1 + len(results.worst_case)
    assert subjects[1][3] == percent(results.worst_case["defense"].per_batch)


def test_an_unreliable_run_says_so_first():
    assert to_markdown(example(reliable=False)).startswith("# UNRELIABLE: ")
    assert "UNRELIABLE" not in to_markdown(example())


def test_names_cannot_become_markup():
    name = r"a|b *c* `d` <script> [e](f) \ _g_"
    text = to_markdown(example(reliable=False, change=lambda results: results["attacks"][0].update(name=name)))
    assert tables(text)[0][1][1] == name
    html = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    assert not re.findall("<(script|b|a|everything)[ >]", html)


def test_it_says_how_it_was_made():
    results = example()
    last = to_markdown(results).rstrip().splitlines()[-1]
    assert f"`{results.run.command}`" in last
    assert results.made_with.commit[:12] in last
    assert results.made_with.platform in last.replace("\\", "")
    assert "commit unknown" in to_markdown(example(change=lambda results: results["made_with"].update(commit=None)))
    other = example(change=lambda results: results["run"].update(command="echo `date`"))
    assert "`` echo `date` ``" in to_markdown(other)


def test_it_names_the_evaluated_data_and_what_the_defence_was_fitted_on():
    named = {"run": "these photographs", "defense": "those digits"}
    text = to_markdown(example(change=lambda results: [results[key].update(data=name) for key, name in named.items()]))
    assert "these photographs" in text.splitlines()[0]
    assert "Evaluated on these photographs: 400 clean images in 20 batches, 80 of them attacked." in text
    assert "fitted on those digits" in text
    assert "Evaluated on unnamed images" in to_markdown(example())


def test_the_number_of_batches_stands_beside_the_headline_and_a_worst_case_of_nothing_is_said_first():
    text = to_markdown(example(change=lambda results: results["worst_case"]["defense"].update(per_batch=0.0)))
    assert text.splitlines()[2].startswith("**")
    assert f"its worst case leaves {percent(0.0)}.**" in text.splitlines()[2]
    assert ", 4 batches)" in text.splitlines()[4]
    origin = {"commit": "fedcba987654", "twoprong": "0.1.0", "torch": "2.13.0"}
    mixed = to_markdown(example(change=lambda results: results["made_with"].update(resumed_from=[origin])))
    assert "(parts resumed from fedcba987654)" in mixed


def test_an_evaluation_without_attacks_claims_nothing():
    nothing = {"attacks": [], "worst_case": {}, "detector": {}, "not_run": []}
    text = to_markdown(example(change=lambda results: results.update(nothing)))
    assert "nothing can be said" in text
    assert len(tables(text)) == 1


@pytest.mark.parametrize(
    ("eps", "norm", "said"),
    [
        (8 / 255, "linf", "8/255"),
        (0.18, "linf", "0.18"),
        (0.5, "l2", "0.5"),
        (0.0, "linf", "0"),
        (0.5 / 255, "linf", "0.00196"),
    ],
)
def test_a_budget_is_written_as_people_say_it(eps, norm, said):
    assert budget(eps, norm) == said


def test_times_are_rounded_to_what_matters():
    assert [duration(seconds) for seconds in (None, 3.21, 3600, 9000)] == ["–", "3.2 s", "60 min", "2.5 h"]


def test_an_attack_that_passes_far_from_clean_images_is_said():
    def far(name, distance):
        def change(results):
            (attack,) = (one for one in results["attacks"] if one["name"] == name)
            attack["divergence"] = {"at_least": distance, "sure": 1.1}

        return to_markdown(example(change=change))

    assert "match passes the test on every batch" in far("match", 1.36)
    assert "d₁ ≥ 1.36 of at most 2" in far("match", 1.36)
    assert "| 1.36 |" in far("paper", 1.36)
    for text in (
        far("paper", 1.36),
        far("match", 0.4),
        to_markdown(example()),
    ):  # flagged; near; not known, as in older files
        assert "passes the test on every batch" not in text


def test_a_constant_threshold_was_calibrated_for_no_rate():
    assert "asked for)" in to_markdown(example())
    constant = example(change=lambda results: results["defense"]["config"].update(detector={"threshold": 0.5}))
    assert "asked for)" not in to_markdown(constant)

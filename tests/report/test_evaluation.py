"""The page, read as a browser's parser reads it."""

import runpy
from html.parser import HTMLParser
from pathlib import Path

import pytest

from twoprong.report import words
from twoprong.report.evaluation import write_page
from twoprong.report.words import headline, verdict

example = runpy.run_path(str(Path(__file__).with_name("example.py")))["example"]


def few(reliable=True, change=lambda results: None):
    """The example with an attack of each kind only, which is drawn faster."""

    def fewer(results):
        kept = ("noise", "bare pgd", "evade", "partial 5 %")
        results["attacks"] = [attack for attack in results["attacks"] if attack["name"] in kept]
        change(results)

    return example(reliable, fewer)


def plain(text):
    return " ".join(text.split())


def percent(share):
    return plain(words.percent(share))


def between(interval):
    return plain(words.between(interval))


class Page(HTMLParser):
    """Tags with their attributes, and the visible text of the body."""

    def __init__(self, results, folder):
        super().__init__()
        self.tags, self.words, self.body, self.hidden = [], [], False, False
        write_page(results, folder / "report.html")
        self.source = (folder / "report.html").read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = plain(" ".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.body |= tag == "body"
        self.hidden |= tag in ("style", "svg", "script")

    def handle_endtag(self, tag):
        self.hidden &= tag not in ("style", "svg", "script")

    def handle_data(self, data):
        if self.body and not self.hidden and data.strip():
            self.words.append(data.strip())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return Page(example(), tmp_path_factory.mktemp("page"))


def values_at(results, path):
    """What stands under a path such as detector.power.by_size or attacks[].batches[].number; KeyError if it is not there."""
    found = [results]
    for step in path.split("."):
        found = [one[step.removesuffix("[]")] for one in found]
        if step.endswith("[]"):
            found = [element for one in found for element in one]
    return found


def test_every_figure_names_where_its_data_stand(page):
    figures = page.all("figure")
    assert len(figures) >= 10
    for figure in figures:
        assert figure["id"]
        for path in figure["data-source"].split():
            assert any(value not in (None, []) for value in values_at(example().as_dict(), path)), path
    with pytest.raises(KeyError):
        values_at(example().as_dict(), "detector.power.by_colour")


def test_ids_are_unique_and_everything_drawn_is_told_in_words(page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    drawings, images = page.all("svg"), page.all("img")
    assert len(drawings) > len(page.all("figure"))  # the histograms are one figure of many panels
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in drawings)
    assert len(images) == sum(len(entry.images) for entry in example().pictures)
    assert all(image["alt"] and image["src"].startswith("data:image/png;base64,") for image in images)


def test_the_page_needs_nothing_else(page):
    assert not page.all("script")
    for _, attributes in page.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "data:").startswith(("data:", "#"))


def test_labels_hold_the_numbers_that_are_drawn(page):
    labels = {svg["aria-label"] for svg in page.all("svg")}
    results = example()
    alarms = next(label for label in labels if label.startswith("False alarms"))
    for row in results.detector.false_alarms:
        assert f"{percent(row.rate)} at {row.size}" in plain(alarms)
    for attack in results.attacks:
        flagged = sum(batch.subjects["defense"].flagged for batch in attack.batches)
        label = next(label for label in labels if label.startswith(f"Statistic under {attack.name}:"))
        assert label.endswith(f"{flagged} of {len(attack.batches)} batches flagged")


def test_a_picture_is_described_by_what_it_is_and_how_it_is_read(page):
    entry, classes = example().pictures[0], example().defense.classes
    alts = [image["alt"] for image in page.all("img")][: len(entry.images)]
    label, says = classes[entry.label], entry.says
    assert alts[0] == f"clean image of {label}, read as {classes[says['clean']]}"
    assert alts[1] == f"attacked image of {label}, read as {classes[says['adversarial']]}"
    assert alts[2].startswith("difference")
    assert "read as" not in alts[2]


def test_classes_without_names_are_numbered(tmp_path):
    results = few(change=lambda results: results["defense"].update(classes=None))
    first = Page(results, tmp_path).all("img")[0]["alt"]
    assert first == f"clean image of {results.pictures[0].label}, read as {results.pictures[0].says['clean']}"


def test_the_headline_is_the_worst_case_and_not_a_kinder_number(tmp_path):
    worse = {"per_batch": 0.0123, "per_batch_interval": [0.0011, 0.0456]}
    results = few(change=lambda results: results["worst_case"]["defense"].update(worse))
    text = Page(results, tmp_path).text
    before_the_table = text.partition("Every attack")[0]
    assert f"leaves {percent(0.0123)} right ({between([0.0011, 0.0456])}, 4 batches)" in before_the_table
    assert percent(results.clean.subjects["bare"].accuracy) in before_the_table
    assert "An attacker who knows the whole defence" in before_the_table


@pytest.mark.parametrize(
    ("kept", "said"), [("bare", "none of them knows the defence"), ("paper", "only the paper's know the defence")]
)
def test_without_an_adaptive_attack_on_the_defence_the_headline_says_so(kept, said):
    results = example()
    assert "knows the whole defence" in headline(results)
    attacks = [
        attack
        for attack in results.attacks
        if attack.threat_model == kept or (attack.threat_model == "adaptive" and attack.target != "defense")
    ]
    results = results.model_copy(update={"attacks": attacks})
    assert "knows the whole defence" not in headline(results)
    assert said in headline(results)


def test_every_attack_stands_in_one_table_with_its_numbers(page):
    whole, _, rest = page.text.partition("Attackers who hold only some of the slots")
    partial = rest.partition("Beside the alternatives")[0]
    for attack in example().attacks:
        mine, other = (whole, partial) if attack.slots is None else (partial, whole)
        assert f" {attack.name} " in mine
        assert attack.name == attack.threat_model or f" {attack.name} " not in other
        accuracy = attack.subjects["defense"].accuracy if attack.slots is None else attack.slots["defense"].attacked
        assert percent(accuracy) in mine.partition(f" {attack.name} ")[2]
    worst = example().worst_case["defense"]
    assert f"worst case, batch by batch {percent(worst.per_batch)}" in whole
    assert percent(worst.per_sample) in whole.partition("worst case, image by image")[2]


def test_the_verdict_comes_first(page, tmp_path):
    assert Page(few(reliable=False), tmp_path).words[0] == verdict(example(reliable=False))[1]
    assert page.words[0] == verdict(example())[1]


def test_the_verdict_names_what_failed_and_warns_of_what_did_not_converge():
    level, said = verdict(example(reliable=False))
    assert level == "bad"
    assert said.startswith("UNRELIABLE: 1 sanity check failed (order <weaker>)")
    assert "1 not converged: read accuracies as upper bounds" in verdict(example())[1]
    passed = [check for check in example().sanity if check.status == "passed"]

    def said_of(reliable, checks):
        return verdict(example().model_copy(update={"reliable": reliable, "sanity": checks}))

    assert said_of(True, passed * 2) == ("weak", "All 2 sanity checks that could be run passed.")
    assert said_of(False, passed)[1].startswith("UNRELIABLE")
    assert said_of(True, [])[1].startswith("No sanity check was run")


def left(share, checks=1):
    """The example with this worst case, and checks that passed."""

    def change(results):
        results["worst_case"]["defense"]["per_batch"] = share
        results["sanity"] = [check for check in results["sanity"] if check["status"] == "passed"] * checks

    return change


@pytest.mark.parametrize(
    ("share", "checks", "level"),
    [(0.0, 2, "broken"), (0.0, 0, "broken"), (0.09, 1, "broken"), (0.3, 2, "weak"), (0.6, 2, "good"), (0.6, 0, "warn")],
)
def test_only_a_defence_that_keeps_half_of_its_accuracy_opens_in_green(share, checks, level):
    found, said = verdict(few(change=left(share, checks)))
    assert found == level
    assert (f"worst case leaves {words.percent(share)}" in said) == (level == "broken")


def test_a_run_without_a_worst_case_is_not_called_good():
    nothing = {"worst_case": {}, "reliable": False, "attacks": []}
    assert verdict(few(change=lambda results: results.update(nothing)))[0] == "bad"


def test_one_or_two_batches_are_said_to_tell_nothing_of_others(tmp_path):
    def fewer(results):
        results["batches"] = results["batches"][:2]
        results["worst_case"]["defense"]["chosen"] = results["worst_case"]["defense"]["chosen"][:2]

    text = Page(few(change=fewer), tmp_path).text
    before_the_table = text.partition("Every attack")[0]
    assert before_the_table.count("2 batches only") >= 3  # the sentence, the card, and what the intervals are about
    assert "Images of one batch share its route" in before_the_table


def test_intervals_over_batches_are_quoted_where_they_are_known(tmp_path):
    wide = [0.11, 0.47]
    results = few(change=lambda results: results["worst_case"]["defense"].update(per_batch_interval_batches=wide))
    text = Page(results, tmp_path).text
    assert f"({between(wide)}, 4 batches)" in text
    assert between(results.worst_case["defense"].per_batch_interval) not in text.partition("Every attack")[0]
    assert "as if images were independent" not in text


def test_parts_from_another_commit_are_named(page, tmp_path):
    origin = {"commit": "fedcba987654-dirty", "twoprong": "0.1.0", "torch": "2.13.0"}
    mixed = few(change=lambda results: results["made_with"].update(resumed_from=[origin]))
    assert "parts resumed from fedcba987654-dirty" in Page(mixed, tmp_path).text
    assert "resumed from" not in page.text


def test_names_cannot_become_tags(page):
    assert "<b>ship</b>" in page.text
    assert "<b>ship" not in page.source
    assert "a <b> & c" in page.text
    assert not page.all("everything")


def _without_subject(name):
    def change(results):
        for holder in (results["clean"]["subjects"], results["worst_case"]):
            holder.pop(name)
        for attack in results["attacks"]:
            attack["subjects"].pop(name)
            if attack["slots"]:
                attack["slots"].pop(name)
            for batch in attack["batches"]:
                batch["subjects"].pop(name)
        for point in results["curve"]:
            point["subjects"].pop(name, None)

    return change


def _one_batch(results):
    for attack in results["attacks"]:
        attack["batches"] = attack["batches"][:1]
    for worst in results["worst_case"].values():
        worst["chosen"] = worst["chosen"][:1]
    results["detector"]["statistics"] = {"clean": [0.001], "bare": [0.2]}


def _empty_lists(results):
    detector = results["detector"]
    detector |= {key: [] for key in ("false_alarms", "skewed", "shifted", "roc")}
    detector |= {"power": {"by_size": [], "by_eps": [], "by_share": []}, "statistics": {"clean": [], "bare": []}}


def _no_test(results):
    for attack in results["attacks"]:
        for batch in attack["batches"]:
            batch["subjects"]["defense"] |= {"flagged": None, "statistic": None}
    for score in results["clean"]["subjects"].values():
        score |= {"flagged": None, "flagged_interval": None}
    results["detector"]["false_alarms"] = []


def _alone(results):
    for name in list(results["worst_case"])[1:]:
        _without_subject(name)(results)
    results["defense"]["classes"] = results["run"]["command"] = results["made_with"]["commit"] = None
    results["not_run"] = results["pictures"] = []
    results["run"] |= {"norm": "l2", "eps": 0.5}
    results["curve"] = results["curve"][:1]


def _nothing_attacked(results):
    results |= {"attacks": [], "worst_case": {}, "curve": [], "pictures": [], "detector": {}, "sanity": []}


def _equal_statistics(results):
    for attack in results["attacks"]:
        attack["threat_model"] = "new"
        for batch in attack["batches"]:
            batch["subjects"]["defense"]["statistic"] = results["defense"]["threshold"]
    results["detector"]["statistics"]["clean"] = []
    results["run"]["eps"] = 0.18


CHANGES = {
    "no curve": (lambda results: results.update(curve=[]), "figure-curve-attacks"),
    "no magnet, one batch": (lambda results: (_without_subject("magnet")(results), _one_batch(results)), None),
    "the defence alone": (_alone, "figure-curve-subjects"),
    "empty lists": (_empty_lists, "figure-roc"),
    "no batch test": (_no_test, "figure-statistics"),
    "nothing attacked": (_nothing_attacked, "figure-statistics"),
    "equal statistics": (_equal_statistics, None),
}


@pytest.mark.parametrize(("change", "absent"), CHANGES.values(), ids=CHANGES.keys())
def test_a_part_that_is_missing_leaves_the_rest_whole(tmp_path, change, absent):
    results = few(change=change)
    before = results.as_dict()
    page = Page(results, tmp_path)
    assert results.as_dict() == before
    assert "How it was made" in page.text
    assert percent(results.clean.subjects["defense"].accuracy) in page.text
    assert absent not in [figure["id"] for figure in page.all("figure")]
    for figure in page.all("figure"):
        for path in figure["data-source"].split():
            values_at(before, path)

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from twoprong.names import TABLES

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
tables, published, figure = (importlib.import_module(name) for name in ("tables", "published", "figure"))

INDEX = """
headline = ["strong-run"]

[strong-run]
kind = "evaluation"
title = "pictures, a small net"

[table1-linf]
kind = "reproduction"
title = "Table 1, left"
strong."DAD" = ["strong-run"]
"""
README = "<!-- table: withstands -->\n<!-- end -->\n"
RESULTS = "before\n\n<!-- table: headline -->\n<!-- end -->\n\n<!-- table: strong-run -->\nold\n<!-- end -->\nafter\n"
DOCS = "<!-- table: reproductions -->\n<!-- end -->\n"


def summarise(accuracy, rejected=0.0):
    return {"accuracy": accuracy, "interval": [0, 1], "rejected": rejected}


def worst(share, rejected=0.0):
    return {"per_batch": share, "per_batch_interval": [share / 2, share + 0.1], "rejected": rejected}


def attack(name, alone, defended, eps=8 / 255, flagged=True, **more):
    subjects = {"bare": summarise(alone), "defense": summarise(defended) | {"flagged": float(flagged)}}
    batches = [{"subjects": {"defense": {"flagged": flagged}}}] * 2
    entry = {"name": name, "attack": name, "threat_model": "adaptive", "target": "defense", "eps": eps}
    return entry | {"in_worst_case": True, "subjects": subjects, "batches": batches} | more


def evaluation():
    """As much of an evaluation's results as tables need."""
    attacks = [
        attack("pgd", 0.0, 0.705, threat_model="bare"),
        attack("pgd, less", 0.9, 0.8, eps=1 / 255, flagged=False, threat_model="bare"),
        attack("pgd, little", 0.25, 0.26, eps=2 / 255, flagged=False, threat_model="bare"),
        attack("pgd, found", 0.0, 0.1, eps=4 / 255, threat_model="bare"),  # less is left, but not by passing the test
        attack("paper", 0.3, 0.611),
        attack("paper again", 0.3, 0.7, attack="paper"),
        attack("evade", 0.0, 0.1, flagged=False),
        attack("evade, twice the budget", 0.0, 0.0, eps=16 / 255, in_worst_case=False, threat_model="bare"),
    ]
    return {
        "kind": "evaluation",
        "reliable": True,
        "run": {
            "protocol": "strong",
            "data": "pictures",
            "seed": 3,
            "norm": "linf",
            "eps": 8 / 255,
            "batch_size": 50,
            "images": 1000,
            "precision": "fp32",
            "command": "twoprong evaluate bundle --data pictures",
        },
        "made_with": {"commit": "c0ffee", "device": "a machine", "torch": "2.0"},
        "defense": {"classifier": "net"},
        "clean": {
            "images": 5000,
            "subjects": {"magnet": summarise(0.9, 0.03), "bare": summarise(0.95), "defense": summarise(0.94)},
        },
        "attacks": attacks,
        "worst_case": {
            "magnet": worst(0.2, 0.4),
            "bare": worst(0.01),
            "defense": worst(0.123) | {"chosen": ["evade", "paper"]},
        },
        "detector": {"false_alarms": [{"size": 25, "rate": 0.5}, {"size": 50, "rate": 0.03}]},
        "sanity": [],
    }


def cell(column, ours, attack=None, **spec):
    return {
        "column": column,
        "paper": 67.53,
        "spread": 1.07,
        "ours": ours,
        "unit": "%",
        "interval": [60.04, 70.06],
        "images": 1000,
        "batch_size": 50,
        "flagged": 0.5,
        "seconds": 90.0,
        "classifier": "net",
        "attack": attack,
        "spec": spec,
    }


def reproduction():
    """As much of a reproduction's results as tables need."""
    full, other = {"norm": "linf", "eps": 8 / 255}, {"norm": "l2", "eps": 0.5}
    cells = [
        cell("Clean", 94.444),
        cell("Robust", 65.432, full),
        cell("l2", 80.0, other),
        cell("10 %", 90.0, full, share=0.1),
    ]
    return {
        "kind": "reproduction",
        "name": "table1-linf",
        "scale": "full",
        "title": "Pictures",
        "source": "Table 1, left",
        "note": "A note.",
        "columns": ["Clean", "Robust", "l2", "10 %"],
        "rows": [{"name": "DAD", "cells": cells}],
        "quoted": [{"name": "Other", "paper": [87.51, None, 1.0, 2.0]}],
        "run": {
            "seed": 0,
            "precision": "fp32",
            "data": "pictures",
            "classifier": "net",
            "command": "twoprong reproduce table1-linf",
        },
        "made_with": {"commit": "c0ffee", "device": "a machine", "torch": "2.0"},
    }


@pytest.fixture
def tree(tmp_path):
    """A repository with one run of each kind, its tables up to date."""
    for name, results in (("strong-run", evaluation()), ("table1-linf", reproduction())):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        (folder / "results.json").write_text(json.dumps(results))
        (folder / "results.md").write_text("a table")
        (folder / "report.html").write_text("<p>8/255 <img src='data:image/jpeg;base64,/9j/4A+/home/b='></p>")
    (tmp_path / "results/index.toml").write_text(INDEX)
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/results.md").write_text(RESULTS)
    (tmp_path / "docs/reproduce.md").write_text(DOCS)
    assert tables.main([], tmp_path) == 0
    return tmp_path


def change(tree, name, edit):
    file = tree / "results" / name / "results.json"
    results = json.loads(file.read_text())
    edit(results)
    file.write_text(json.dumps(results))


def refused(tree, *words):
    with pytest.raises(published.PublishError) as caught:
        tables.filled(tree)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def row(text, start):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [part.strip() for part in line.split("|")[1:-1]]


def test_the_tables_in_this_repository_are_what_its_published_runs_give(capsys):
    code = tables.main(["--check"], ROOT)
    assert code == 0, "".join(capsys.readouterr())


def test_the_tool_knows_every_table_of_the_paper():
    assert tables.PAPER == TABLES


def test_the_papers_main_table_stands_without_its_quoted_rows(tree):
    page = tree / "docs/results.md"
    page.write_text(page.read_text() + "<!-- table: table1 -->\n<!-- end -->\n")
    text = tables.filled(tree)["docs/results.md"].split("<!-- table: table1 -->")[1]
    assert "| DAD | attacked, ℓ∞ 8/255 | 67.53 ± 1.07 | 65.43 (60.0–70.1) | 12.3 % (6.2–22.3) of 1,000 | 1,000 |" in text
    assert "twoprong reproduce table1-linf" in text
    assert "Other" not in text


def test_the_tool_needs_no_torch():
    code = "import sys; sys.path.insert(0, 'tools'); import tables; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_subjects_are_compared_in_the_usual_order(tree):
    text = (tree / "docs/results.md").read_text()
    assert row(text, "the defence")[1:] == ["94.0 %", "12.3 % (6.2–22.3)"]
    assert row(text, "MagNet (Meng & Chen 2017)")[1:] == ["90.0 % (3.0 % refused)", "20.0 % (10.0–30.0), 40.0 % refused"]
    assert text.index("| the defence |") < text.index("| the classifier alone |") < text.index("| MagNet")
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")


def test_the_headline_has_the_papers_attack_and_the_worst_case(tree):
    text = (tree / "docs/results.md").read_text()
    found = row(text, "pictures, a small net")
    clean = "95.0 % / 94.0 % of 5,000"
    assert found[1:6] == ["`strong`", "ℓ∞ 8/255", "**12.3 % (6.2–22.3)**", clean, "61.1 %"]
    assert found[6:] == ["1.0 %", "20.0 %, 40.0 % refused", "net", "1,000 (2)"]
    assert "`twoprong evaluate bundle --data pictures` (commit c0ffee; a machine, torch 2.0, fp32, seed 3)" in text


def test_the_interval_over_batches_is_quoted_where_it_is_known(tree):
    known = {"per_batch_interval_batches": [0.01, 0.456]}
    change(tree, "strong-run", lambda results: results["worst_case"]["defense"].update(known))
    pages = tables.filled(tree)
    assert "12.3 % (1.0–45.6)" in pages["README.md"]
    assert "**12.3 % (1.0–45.6)**" in pages["docs/results.md"]


def test_the_first_page_has_four_attackers(tree):
    text = (tree / "README.md").read_text()
    assert row(text, "nobody: clean images")[1:] == ["95.0 %", "94.0 %", "3.0 %"]
    unaware = ["0.0 %; 25.0 % at 2/255", "70.5 %; 26.0 % at 2/255", "all; none at 2/255"]
    assert row(text, "does not know the defence (PGD)")[1:] == unaware
    assert row(text, "runs the paper's attack (Algorithm 3)")[1:] == ["30.0 %", "61.1 %", "all"]
    assert row(text, "knows everything (the worst of all attacks)")[1:] == ["1.0 %", "12.3 % (6.2–22.3)", "50.0 %"]
    assert "1,000 images in 2 batches of 50 (5,000 images in the first row).\nBudget ℓ∞ 8/255, protocol `strong`" in text
    assert "95 % interval (of these batches only) in brackets" in text


def test_the_first_page_has_the_hardened_mode_beside_it(tree):
    index = tree / "results/index.toml"
    index.write_text('hardened = "strong-run"\n' + index.read_text())
    assert tables.main([], tree) == 0
    text = (tree / "README.md").read_text()
    last = row(text, "knows everything (the worst of all attacks)")
    assert last[1:] == ["1.0 %", "12.3 % (6.2–22.3)", "50.0 %", "12.3 % (6.2–22.3)"]
    assert row(text, "nobody: clean images")[4] == "94.0 %"
    assert text.count("1,000 images in 2 batches of 50 (5,000 images in the first row).\n") == 2


def test_the_picture_is_drawn_from_the_published_run(tmp_path, capsys):
    assert figure.main(["--check"], ROOT) == 0, capsys.readouterr().out
    entry = '[{0}]\nkind = "evaluation"\ntitle = "a run"\ncommit = "672378dad542"\n'
    for name, run in (("run", "cifar10-small-strong"), ("hard", "cifar10-small-hardened-strong")):
        shutil.copytree(ROOT / "results" / run, tmp_path / "results" / name)
    both = 'headline = ["run"]\nhardened = "hard"\n' + entry.format("run") + entry.format("hard")
    (tmp_path / "results/index.toml").write_text(both)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / figure.PICTURE, tmp_path / figure.PICTURE)
    assert figure.main(["--check"], tmp_path) == 0
    change(tmp_path, "run", lambda results: results["clean"]["subjects"]["defense"].update(accuracy=0.5))
    assert figure.main(["--check"], tmp_path) == 1
    assert figure.main([], tmp_path) == 0
    assert ">50.0 %<" in (tmp_path / figure.PICTURE).read_text()


def test_a_table_of_the_paper_cell_by_cell(tree):
    text = (tree / "docs/reproduce.md").read_text()
    shared = ["60.0–70.1", "1,000", "50 %", "1.5"]
    left = "12.3 % (6.2–22.3) of 1,000"
    for column, ours, strong in (("Clean", "94.44", "–"), ("Robust", "65.43", left), ("l2", "80.00", "–")):
        found = row(text, f"DAD | {column}")
        assert found == ["DAD", column, "67.53 ± 1.07", ours, shared[0], strong, *shared[1:]]
    assert row(text, "DAD | 10 %")[5] == "–"  # a tenth of the slots is not what `strong` attacked
    assert row(text, "Other | Clean")[2:4] == ["87.51", "not run"]
    assert "Every protected classifier was a net" in text
    assert "(../results/table1-linf/results.md), by `twoprong reproduce table1-linf`" in text
    missing = next(line for line in text.splitlines() if line.startswith("Not run yet"))
    assert "`table1-l2`" in missing
    assert "`table1-linf`" not in missing


def test_an_average_with_clean_images_has_no_worst_case_beside_it(tree):
    def average(results):
        results["rows"][0]["cells"][1]["spec"] = {"measure": "average"}

    change(tree, "table1-linf", average)
    refused(tree, "[table1-linf] strong")  # no other cell has that budget


def test_several_runs_of_one_table_stand_in_one_table(tree):
    shutil.copytree(tree / "results/table1-linf", tree / "results/more")
    index = tree / "results/index.toml"
    index.write_text(index.read_text() + '[more]\nkind = "reproduction"\ntitle = "not shown"\n')

    def other_row(results):
        results.update(columns=["Robust"], note="Newer words.", rows=[{"name": "Other", "cells": [cell("Robust", 55.5)]}])
        third = {"name": "Third", "paper": [1.0], "spread": [0.25]}
        results.update(quoted=[{"name": "DAD", "paper": [67.53]}, third])
        results["run"]["command"] = "twoprong reproduce table1-linf --only Other"

    change(tree, "more", other_row)
    text = tables.filled(tree)["docs/reproduce.md"]
    assert text.count("###") == 1
    assert "not shown" not in text
    assert "Newer words." in text
    assert row(text, "DAD | Robust")[3] == "65.43"  # measured by the first run, only quoted in the second
    assert row(text, "Other | Robust")[3] == "55.50"
    assert row(text, "Other | Clean")[3] == row(text, "Third | Robust")[3] == "not run"
    assert (row(text, "Other | Clean")[2], row(text, "Third | Robust")[2]) == ("87.51", "1.00 ± 0.25")
    assert "\nDAD: [`results/table1-linf`](../results/table1-linf/results.md), by `twoprong reproduce table1-linf`" in text
    assert "\nOther: [`results/more`](../results/more/results.md), by `twoprong reproduce table1-linf --only Other`" in text

    change(tree, "more", lambda results: results["rows"][0].update(name="DAD"))
    refused(tree, "each cell once", "table1-linf, more", "DAD / Robust")
    change(tree, "more", lambda results: results["run"].update(scale={"preset": "paper"}))
    text = tables.filled(tree)["docs/reproduce.md"]  # by other settings it is another row
    assert (row(text, "DAD | Robust")[3], row(text, "DAD, by preset paper | Robust")[3]) == ("65.43", "55.50")
    change(tree, "more", lambda results: results["run"].update(classifier="other net"))
    assert tables.filled(tree)["docs/reproduce.md"].count("###") == 2  # around another classifier: a table of its own


def test_a_classifier_alone_stands_beside_the_classifier_alone(tree):
    change(tree, "table1-linf", lambda results: results["rows"][0]["cells"][1]["spec"].update(bare=True))
    assert row(tables.filled(tree)["docs/reproduce.md"], "DAD | Robust")[5].startswith("1.0 %")


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("strong-run", lambda results: results["worst_case"]["defense"].update(per_batch=0.124)),
        ("table1-linf", lambda results: results["rows"][0]["cells"][1].update(ours=66.0)),
        ("table1-linf", lambda results: results["run"].update(command="twoprong reproduce alpha")),
        ("strong-run", lambda results: results["sanity"].append({"name": "convergence", "status": "not converged"})),
    ],
)
def test_a_changed_number_is_found_and_mended(tree, name, edit):
    assert tables.main(["--check"], tree) == 0
    change(tree, name, edit)
    before = (tree / "docs/results.md").read_text()
    assert tables.main(["--check"], tree) == 1
    assert (tree / "docs/results.md").read_text() == before
    assert tables.main([], tree) == 0
    assert tables.main(["--check"], tree) == 0


def test_a_number_changed_by_hand_is_found(tree):
    page = tree / "docs/results.md"
    page.write_text(page.read_text().replace("12.3 %", "82.3 %"))
    assert tables.main(["--check"], tree) == 1


def test_an_unreliable_run_says_so(tree):
    failed = {"name": "large budget", "status": "failed"}
    change(tree, "strong-run", lambda results: results.update(reliable=False, sanity=[failed]))
    pages = tables.filled(tree)
    assert all("UNRELIABLE: failed checks (large budget)" in text for text in pages.values())


@pytest.mark.parametrize("file", ["results.json", "results.md", "report.html"])
def test_a_run_without_its_files_is_refused(tree, file):
    (tree / "results/strong-run" / file).unlink()
    refused(tree, "results/strong-run", f"got no {file}")


def test_everything_that_is_wrong_is_said_at_once(tree, capsys):
    change(tree, "strong-run", lambda results: results["run"].update(command=None))
    change(tree, "table1-linf", lambda results: results.update(scale="smoke"))
    (tree / "results/unnamed").mkdir()
    refused(tree, "run.command", "smoke", "[unnamed]")
    assert tables.main(["--check"], tree) == 2
    assert len(capsys.readouterr().err.splitlines()) >= 3


def test_a_run_needs_a_commit_from_somewhere(tree):
    change(tree, "strong-run", lambda results: results["made_with"].update(commit=None))
    refused(tree, "expected a commit")
    index = tree / "results/index.toml"
    index.write_text(index.read_text().replace("[strong-run]\n", '[strong-run]\ncommit = "decade"\n'))
    assert "commit decade" in tables.filled(tree)["docs/results.md"]


def test_a_run_that_is_too_large_or_not_tidy_is_refused(tree, monkeypatch):
    (tree / "results/strong-run/work").mkdir()
    monkeypatch.setattr(published, "LIMIT", 100)
    refused(tree, "got work", "at most 100 bytes")


@pytest.mark.parametrize(
    "text",
    [
        "twoprong evaluate /home/somebody/bundle",
        "twoprong evaluate b --data-root=/data/cifar",
        "twoprong evaluate '~/b'",
        "twoprong evaluate ~someone/b",
        r"twoprong evaluate C:\b",
        r"twoprong evaluate 'D:/b c'",
        r"twoprong evaluate \\host\b",
        "see file:///b",
    ],
)
def test_paths_of_a_machine_are_refused_wherever_they_stand(tree, text):
    places = [
        lambda results: results["run"].update(command=text),
        lambda results: results["made_with"].update(more=[{"deep": text}]),
        lambda results: results["defense"].update({text: 1}),
    ]
    kept = (tree / "results/strong-run/results.json").read_text()
    for place in places:
        change(tree, "strong-run", place)
        refused(tree, "expected relative paths", "results.json")
        (tree / "results/strong-run/results.json").write_text(kept)
    (tree / "results/strong-run/report.html").write_text(f"<code>{text.replace(chr(39), '&#39;')}</code>")
    refused(tree, "report.html")


def test_what_only_looks_like_a_path_is_not_refused(tree):
    text = "8/255 or 1 / 2, ../data and a/b, https://example.org/x, and/or <b>x</b>, 14px/1.5"
    text += ", data:image/png;base64,/9j/+/home/x"
    change(tree, "strong-run", lambda results: results["made_with"].update(device=text))
    (tree / "results/strong-run/report.html").write_text(text)
    tables.filled(tree)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('headline = ["strong-run"]', 'headline = ["gone"]', "got 'gone'"),
        ('headline = ["strong-run"]', 'headline = ["table1-linf"]', "got 'table1-linf'"),
        ('headline = ["strong-run"]', 'headline = ["strong-run"]\nhardened = "gone"', "hardened: expected an evaluation"),
        ('strong."DAD" = ["strong-run"]', 'strong."DAD" = ["gone"]', "got 'gone'"),
        ('strong."DAD" = ["strong-run"]', 'strong."DAD" = "strong-run"', "expected a list"),
        ('strong."DAD"', 'strong."DAB"', "expected one of the rows 'DAD', got 'DAB'"),
        ("[strong-run]", "[weak-run]", "results/weak-run: expected"),
        ('kind = "reproduction"', 'kind = "evaluation"', "results/table1-linf"),
        ('kind = "reproduction"', 'kind = "photo"', "results/table1-linf: expected kind"),
    ],
)
def test_an_entry_that_points_nowhere_is_refused(tree, old, new, words):
    index = tree / "results/index.toml"
    assert old in index.read_text()
    index.write_text(index.read_text().replace(old, new))
    refused(tree, words)


@pytest.mark.parametrize(
    "edit",
    [
        lambda results: results["run"].update(protocol="quick"),
        lambda results: results["run"].update(data="other"),
        lambda results: results["run"].update(eps=4 / 255),
        lambda results: results["run"].update(norm="linf2"),
        lambda results: results["run"].update(batch_size=100),
        lambda results: results["defense"].update(classifier="larger"),
    ],
)
def test_an_evaluation_of_something_else_is_not_put_beside_a_table(tree, edit):
    change(tree, "strong-run", edit)
    refused(tree, "[table1-linf] strong: DAD")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "expected `<!-- table: headline -->`"),
        ("<!-- table: gone -->\n<!-- end -->", "got 'gone'"),
        ("<!-- table: headline -->\n", "got one without"),
        ("<!-- table: headline -->\n<!-- table: strong-run -->\n<!-- end -->", "got one without"),
    ],
)
def test_a_page_whose_regions_do_not_fit_is_refused(tree, text, words):
    (tree / "docs/results.md").write_text(text)
    refused(tree, words)


def test_a_headline_region_needs_a_headline(tree):
    index = tree / "results/index.toml"
    index.write_text(index.read_text().replace('headline = ["strong-run"]', ""))
    refused(tree, "docs/results.md", "got 'headline'")


def test_a_run_is_added_packed_and_whole(tree, tmp_path_factory, capsys):
    run = tmp_path_factory.mktemp("runs") / "run"
    shutil.copytree(tree / "results/strong-run", run)
    (run / "results.json").write_text(json.dumps(evaluation(), indent=1))
    (run / "work").mkdir()
    assert tables.main(["--add", str(run), "again"], tree) == 0
    added = tree / "results/again"
    assert json.loads((added / "results.json").read_text()) == evaluation()
    assert (added / "results.json").stat().st_size < (run / "results.json").stat().st_size
    assert {path.name for path in added.iterdir()} == {"results.json", "results.md", "report.html"}
    assert tables.main(["--add", str(run), "again"], tree) == 2
    (run / "report.html").unlink()
    assert tables.main(["--add", str(run), "third"], tree) == 2
    assert "got no report.html" in capsys.readouterr().err

"""The site, the notebook and the one-page map of the code."""

import functools
import http.server
import importlib
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

import twoprong
from twoprong.attacks import ATTACKS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/twoprong"
sys.path.insert(0, str(ROOT / "tools"))
notebook = importlib.import_module("notebook")
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served: its search does not work from a file."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def pages(site):
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "report.html")


def test_no_page_scrolls_sideways_or_asks_another_machine(site, address, browser):
    context = browser.new_context(viewport=PHONE)
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((address, "data:")) else wrong.append(request.url))
    found = [name for name in pages(site) if name != "404.html"]
    assert {"index.html", "results.html", "own_classifier.html", "reference/attacks.html"} <= set(found)
    wide = []
    for name in found:
        page.goto(address + name)
        if page.evaluate("document.documentElement.scrollWidth") > PHONE["width"]:
            wide.append(name)
        assert page.locator("h1").count() == 1, name
    context.close()
    assert wide == []
    assert wrong == []


def test_the_search_finds_an_attack(address, browser):
    page = browser.new_page()
    page.goto(address + "index.html")
    box, state = page.get_by_role("textbox", name="Search"), page.locator(".md-search-result__meta")
    box.click()
    state.filter(has_text="Type to start searching").wait_for()  # letters typed before the index is there are lost
    box.press_sequentially("evade")
    page.locator(".md-search-result__item").first.wait_for()
    assert page.locator(".md-search-result__link[href*='attacks.html']").count() > 0


def test_the_reference_has_every_public_name(site):
    there = set(re.findall(r'<h[2-4] id="(twoprong[\w.]*)"', "".join(p.read_text() for p in (site / "reference").iterdir())))
    names = [getattr(twoprong, name) for name in twoprong.__all__ if name not in ("attacks", "errors")]
    for public in [*names, *ATTACKS.values()]:
        assert f"{public.__module__}.{public.__qualname__}" in there


def test_every_published_report_is_in_the_site(site):
    runs = {path.parent.name for path in (ROOT / "results").glob("*/report.html")}
    assert runs
    assert {path.parent.name for path in (site / "results").glob("*/report.html")} == runs
    assert 'href="report.html"' in (site / "results/cifar10-small-strong/results.html").read_text()


def texts(cells):
    """What each cell printed, with all numbers taken out: those depend on the machine's rounding."""
    printed = ("".join(output.get("text", "")) for cell in cells for output in cell.get("outputs", ()))
    return [re.sub(r"-?\d+(\.\d+)?%?", "#", text) for text in printed]


def test_the_notebook_runs_and_shows_what_it_prints(monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    stored = json.loads(notebook.NOTEBOOK.read_text())["cells"]
    cells = notebook.executed()["cells"]
    assert texts(cells) == texts(stored)
    printed = "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", ()))
    assert re.findall(r"adversarial: (\w+)", printed) == ["False", "True", "False"]  # clean, PGD, an attacker who knows it
    left = [float(number) for number in re.findall(r"correctly[\w ]*: +([\d.]+)%", printed)]
    clean, alone, defended, evaded = left
    assert clean > 90
    assert defended > alone + 30
    assert evaded < 50
    assert "same verdict after loading: True" in printed


def test_every_module_is_on_the_map():
    named = set(re.findall(r"`([^`\n]+)`", (ROOT / "ARCHITECTURE.md").read_text()))
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE)
        if module.name == "__init__.py" and len(module.parts) > 1:
            continue  # its folder's other files are there
        assert {module.as_posix(), *(f"{parent.as_posix()}/" for parent in module.parents)} & named, module


def test_what_is_on_the_map_is_there():
    named = re.findall(r"`([\w./-]+(?:\.py|/))`", (ROOT / "ARCHITECTURE.md").read_text())
    assert named
    places = (ROOT, PACKAGE, ROOT / "tests")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_test_tool_and_page_is_on_the_map():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for folder in (path for path in (ROOT / "tests").rglob("*") if path.is_dir() and any(path.glob("test_*.py"))):
        name = folder.relative_to(ROOT / "tests").as_posix()
        assert (PACKAGE / name).is_dir() or f"`tests/{name}/`" in text, name
    for path in (ROOT / "tests").glob("test_*.py"):
        assert (PACKAGE / path.name.removeprefix("test_")).is_file() or f"`{path.name}`" in text, path.name
    for path in (ROOT / "tools").glob("*.py"):
        assert f"`tools/{path.name}`" in text, path.name
    for path in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.ipynb")]:
        assert f"](docs/{path.name})" in text, path.name


def test_the_citation_has_the_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert f'version = "{citation["version"]}"' in (ROOT / "pyproject.toml").read_text()
    (paper,) = citation["references"]
    assert f"title     = {{{paper['title']}}}" in (ROOT / "README.md").read_text()
    assert [author["family-names"] for author in paper["authors"]] == ["Zhang", "Rubinstein", "Zhang", "Liu"]


@pytest.mark.parametrize("file", [".github/workflows/ci.yml", ".pre-commit-config.yaml"])
def test_what_services_read_calls_what_developers_call(file):
    text = (ROOT / file).read_text()
    assert yaml.safe_load(text)
    called = re.findall(r"(?:entry|run): (\S+)", text)
    checks = re.findall(r"\$\(BIN\)/(\S+)", (ROOT / "Makefile").read_text())
    assert called
    for command in called:
        assert (ROOT / command).is_file() if command.startswith(".ci/") else command.removeprefix(".venv/bin/") in checks

"""What the site shows besides docs/: pages that live elsewhere in the repository, with their links set right.

mkdocs calls `on_files` and `on_page_markdown` (`hooks` in mkdocs.yml). README.md is the home page. The project's other
pages, the published runs and the notebook become pages, too.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NOTEBOOK = "docs/own_classifier.ipynb"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
# path in the repository -> path in the site
PLACES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    NOTEBOOK: "own_classifier.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not under docs/."""
    PLACES.update({path: path for path in _published()})
    for path, place in PLACES.items():
        source = ROOT / path
        if path == NOTEBOOK:
            files.append(File.generated(config, place, content=as_markdown(json.loads(source.read_text(encoding="utf-8")))))
        else:
            files.append(File.generated(config, place, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links between files of the repository to the pages they have become."""
    here = page.file.src_uri
    origin = {place: path for path, place in PLACES.items()}.get(here, f"docs/{here}")
    if origin.startswith("results/") and (ROOT / origin).with_name("report.html").is_file():
        markdown += "\n\n[The whole report, with figures and pictures](report.html)\n"

    def moved(match: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", match[2]):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[2]))
        place = PLACES.get(target, target.removeprefix("docs/"))
        return match[1] + posixpath.relpath(place, posixpath.dirname(here) or ".") + match[3]

    return LINK.sub(moved, markdown)


def as_markdown(notebook: dict[str, Any]) -> str:
    """A notebook's cells and what they printed or drew."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![output](data:image/png;base64,{''.join(data['image/png'].split())})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _published() -> list[str]:
    """The files of results/ that a reader opens."""
    found = [path for path in (ROOT / "results").rglob("*") if path.suffix in (".md", ".html", ".svg")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)

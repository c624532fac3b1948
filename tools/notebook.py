"""Run docs/own_classifier.ipynb and write what its cells print and draw into it."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs/own_classifier.ipynb"


def executed(path: Path = NOTEBOOK) -> nbformat.NotebookNode:
    """The notebook after a run in a fresh kernel. Raises CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False, coalesce_streams=True).execute()
    notebook.metadata.language_info = {"name": "python"}  # without the Python version, which would change the file
    return notebook


def main() -> int:
    nbformat.write(executed(), NOTEBOOK)
    print(f"{NOTEBOOK.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

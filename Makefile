# make demo | test | check | bench | tables | figure | notebook | docs | dist: each sets up what it needs in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2

.PHONY: demo test check bench tables figure notebook docs dist clean

demo: $(VENV)/.core
	$(BIN)/twoprong demo

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

tables: $(BIN)/python
	$(BIN)/python tools/tables.py

figure: $(BIN)/python
	$(BIN)/python tools/figure.py

notebook: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tools/notebook.py

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Without isolation: the build takes setuptools from .venv and needs no network.
dist: $(VENV)/.dev
	rm -rf build dist
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf $(VENV) build dist site demo-out src/*.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "twoprong needs Python 3.11 or later; call make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps torchattacks pyautoattack  # their metadata asks for torchvision, their code does not
	@touch $@ $(VENV)/.core

# From a fresh clone: `make demo` tunes a GEMM on this machine, `make test` runs the tests.
# Both make their own virtual environment in .venv and install what they need into it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The tests' torch. This release has a build without GPU libraries, which pip finds where its settings name an index
# that has it; any other torch will do where there is no such release.
TORCH := torch==2.13.0

.PHONY: demo test lint types check clean

demo: $(VENV)/core
	$(BIN)/deepgen tune gemm MNK=64 B=64 --trials 60 --time-budget 20 --keep-top 4

# Both parts run whatever the first one finds; the exit code is the worse of the two.
test: $(VENV)/dev
	@.ci/missing
	@$(BIN)/python -m pytest -m "not quiet" --workers auto; beside=$$?; \
	$(BIN)/python -m pytest -m quiet -rs; quiet=$$?; \
	exit $$((beside > quiet ? beside : quiet))

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/core: pyproject.toml | $(BIN)/python
	$(PIP) -e .
	touch $@

# All that tests import, in one environment for newcomers and CI. torch has thousands of files, of which tests import a
# few: none is compiled ahead. uv installs the rest in a tenth of pip's time; where it cannot reach it, pip does it.
# The core is part of it, and is not installed again.
$(VENV)/dev: pyproject.toml | $(BIN)/python
	$(PIP) --no-compile $(TORCH) || $(PIP) --no-compile torch
	$(PIP) uv && $(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]' || $(PIP) -e '.[dev]'
	touch $(VENV)/core $@

# From a fresh clone: `make demo` tunes a GEMM on this machine, `make test` runs the tests.
# Both make their own virtual environment in .venv and install what they need into it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What the tests' environment holds beside the core; CI adds the optional extras so that no test is skipped.
EXTRAS ?= dev

.PHONY: demo test lint types check clean

demo: $(VENV)/core
	$(BIN)/deepgen tune gemm MNK=64 B=64 --trials 60 --time-budget 20 --keep-top 4

test: $(VENV)/dev
	$(BIN)/python -m pytest -m "not alone" -n auto --maxprocesses 8 --dist loadfile
	$(BIN)/python -m pytest -m alone

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV)

$(VENV)/core: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	touch $@

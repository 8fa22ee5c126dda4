# `make demo`, `make test` and `make check` work on a fresh clone with Python >= 3.11 and a package index.
PYTHON ?= python3
PIP_ARGS ?=
# One known release, installed first: an unpinned torch on Linux is the newest build with gigabytes of CUDA packages.
# This release has them too, unless pip is pointed at CPU builds: make demo PIP_ARGS="--extra-index-url ..." TORCH=torch==2.13.0+cpu
TORCH ?= torch==2.13.0
EXAMPLES ?= 300
PORT ?= 8080
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Processes that the tests run in, one thread each: as many as cores, at most eight. (pytest's `auto` may count two of them as one.)
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 8 ? cores : 8)))
VERSION ?=
# Files are given out in the order of their names: by number of tests, as is usual, the long ones of few tests would come last.
SPREAD = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# The tests start a hundred Python processes: without bytecode on disk each of them would compile all modules anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# The unit layers: hand-worked numbers, settings, imports. Not the layers that build, train, serve or start processes.
FAST := npm index tests/index tests/masking tests/corpus tests/objectives \
	$(addprefix tests/test_,imports.py settings.py config_paths.py errors.py)

.PHONY: install demo serve openapi site zero-shot test test-all test-fast fuzz check format wheel release clean help

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

install: $(INSTALLED)  ## Make .venv and install everything the demo and the tests need

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "npmlm needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": use make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(PIP_ARGS) "$(TORCH)"
	$(BIN)/pip install --quiet $(PIP_ARGS) --editable ".[plots,serve,documents,mcp,browser,docs,dev]"
	@touch $(INSTALLED)

demo: $(INSTALLED)  ## Index the demo corpus, answer the demo questions, print hit@1 and hit@5
	rm -rf runs/demo
	$(BIN)/npmlm build "corpus.files=[npm/assets/demo/*.jsonl]" index=runs/demo/index
	$(BIN)/npmlm evaluate task=demo index=runs/demo/index out=runs/demo/evaluation show=10

zero-shot: $(INSTALLED)  ## Train the baseline, build the indexes, print the zero-shot tables: make zero-shot DATA=DIR
	scripts/zero_shot.sh $(DATA)

test: $(INSTALLED)  ## Run the everyday tests, offline, a process a core: make test WORKERS=1
	$(PYTEST) $(SPREAD) -m "not slow"

test-all: $(INSTALLED)  ## Run those that `make test` leaves out too: browser, Ray, package, site, notebooks, fuzzing, kills at every place
	$(PYTEST) $(SPREAD)

test-fast: $(INSTALLED)  ## Run the unit layers alone, for daily work: under 60 seconds on two cores
	$(PYTEST) $(SPREAD) $(FAST)

fuzz: $(INSTALLED)  ## Draw other settings, manifests, encoders, texts and corpora than the suite does: make fuzz EXAMPLES=500
	NPM_FUZZ_EXAMPLES=$(EXAMPLES) $(PYTEST) tests/test_fuzz.py

serve: $(INSTALLED)  ## Serve the demo index, built if it is not there, with its page: make serve PORT=8080
	[ -f runs/demo/index/manifest.json ] || $(BIN)/npmlm build "corpus.files=[npm/assets/demo/*.jsonl]" index=runs/demo/index
	$(BIN)/npmlm serve index=runs/demo/index examples=npm/assets/demo/examples.txt port=$(PORT)

openapi: $(INSTALLED)  ## Write docs/openapi.json anew after the routes have changed
	NPMLM_WRITE_OPENAPI=1 $(PYTEST) tests/serving/test_routes.py -k description_of_the_routes

site: $(INSTALLED)  ## Write the generated pages and build the site of docs/ into site/; a link to no page or heading fails (to no picture or file: make test)
	$(BIN)/python scripts/docs_pages.py
	$(BIN)/zensical build --strict --clean

check: $(INSTALLED)  ## Format, lint, types, the site, all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) site
	$(MAKE) test-all

format: $(INSTALLED)  ## Rewrite the files as `check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(INSTALLED)  ## Build a wheel with the weights into dist/ (python -m build makes one of the source archive, which has none)
	$(BIN)/python -m build --no-isolation --wheel

release: $(INSTALLED)  ## Check, build and try the files of a release, and stop before the upload: make release VERSION=0.3.0
	@[ -n "$(VERSION)" ] || { echo "which version? make release VERSION=0.3.0" >&2; exit 2; }
	PIP_ARGS="$(PIP_ARGS)" TORCH="$(TORCH)" $(BIN)/python scripts/release.py "$(VERSION)"

clean:  ## Remove what was built
	rm -rf $(VENV) runs build dist site docs/generated .cache *.egg-info

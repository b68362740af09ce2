# make serve: set up, prepare the default models and serve.  make test: set up, check and test.
#
# Everything lives in .venv beside this file. Paths are relative on purpose: the checkout's own path may
# hold spaces.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?=
ARGS ?=
# A worker per core, so one thread each.
PYTEST_ARGS ?= -n auto --dist loadfile
PYTEST = OMP_NUM_THREADS=1 .venv/bin/python -m pytest $(PYTEST_ARGS)

# Changes of what is installed, or of where, set up again; nothing else does.
KEY := $(shell { pwd; cat pyproject.toml setup.py constraints.txt models/native/*.cpp models/native/*.h engine/native/*.cpp; } | cksum | tr -d ' ')
RUN_STAMP := .venv/.run-$(KEY)
DEV_STAMP := .venv/.dev-$(KEY)

.PHONY: help setup serve test test-fast fuzz check format bench clean

help: ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1|\2/p' Makefile | column -t -s '|'

.venv/.made:
	@for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11); do \
	    if "$$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Making .venv with $$("$$python" --version)"; \
	        "$$python" -m venv .venv && touch $@ && exit; exit 1; \
	    fi; \
	done; \
	echo 'Python 3.11 or newer with its venv module is needed, and $(or $(PYTHON),python3) is not that.' >&2; \
	echo 'Name one: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.12' >&2; exit 1

$(RUN_STAMP): | .venv/.made
	.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	@rm -f .venv/.run-* .venv/.dev-*; touch $@

$(DEV_STAMP): | .venv/.made
	.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@rm -f .venv/.run-* .venv/.dev-*; touch $@ $(RUN_STAMP)

setup: $(DEV_STAMP) ## Make .venv with everything for development

serve: $(RUN_STAMP) ## Serve; RESISPEC_* variables and ARGS="--port 9000 ..." are passed on
	@exec .venv/bin/resispec serve $(ARGS)

test: check ## Check, then run all tests
	$(PYTEST)

test-fast: $(DEV_STAMP) ## The tests that need no real model and no minutes
	$(PYTEST) -m 'not slow'

fuzz: $(DEV_STAMP) ## Thousands of generated requests against the OpenAPI document
	FUZZ_EXAMPLES=200 .venv/bin/python -m pytest -s tests/e2e/test_fuzz.py

check: $(DEV_STAMP) ## Lint, format and type checks
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	@mkdir -p .typecheck/resispec; cd .typecheck/resispec; ln -sfn ../../server ../../engine ../../models .
	.venv/bin/python -m mypy
	.venv/bin/python -m mypy tests
	MYPYPATH=deploy/grafana .venv/bin/python -m mypy deploy/grafana/build.py
	.venv/bin/python -m mypy docs/compatibility/build.py

format: $(DEV_STAMP) ## Put the code into shape
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .

bench: $(RUN_STAMP) ## Measure ratios in one run; ARGS are passed on
	@exec .venv/bin/resispec bench $(ARGS)

clean: ## Remove .venv and what was built; the models' cache stays
	rm -rf .venv .typecheck build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

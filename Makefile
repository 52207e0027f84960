# Everything runs in .venv, made from constraints.txt. `make` alone lists the targets.

PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed

# Parallelism is one process per job, never many threads in one.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-browser check format reproduce-boolean reproduce-arithmetic reproduce-persistence clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=$(PYTHON) (makes .venv), JOBS=$(JOBS) (worker processes)."

install: $(STAMP) ## make .venv with the development extras (PYTHON=python3.12 to choose one)

# The stamp comes last, so an interrupted install is done again.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) is not found: make install PYTHON=/path/to/python (3.10 or newer)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 10) else "maskprior needs Python 3.10 \
	or newer, $(PYTHON) is %d.%d: make install PYTHON=/path/to/a/newer/python" % v[:2])'
	@rm -f $@
	$(PYTHON) -m venv .venv
	@echo "Installing PyTorch and the rest into .venv: some minutes, about 6 GB with CUDA libraries."
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## the three Boolean tasks in minutes: a table and figures in demo/
	$(BIN)/maskprior run all --preset quick --out demo --jobs $(JOBS)
	$(BIN)/maskprior report demo

test: $(STAMP) ## the whole test suite, in parallel, warnings as errors
	$(BIN)/python -m pytest -n $(JOBS)

test-browser: $(STAMP) ## the HTML report in a real browser (apt-get install chromium chromium-driver)
	$(BIN)/python -m pytest -m browser

check: $(STAMP) ## lint, format and strict types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(STAMP) ## mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

reproduce-boolean: $(STAMP) ## the published Boolean tables, from nothing or from where they stopped
	$(BIN)/python -m recipes.boolean --out results/boolean --jobs $(JOBS)

reproduce-arithmetic: $(STAMP) ## the published arithmetic tables, from nothing or from where they stopped
	$(BIN)/python -m recipes.arithmetic --out results/arithmetic --jobs $(JOBS)

reproduce-persistence: $(STAMP) ## the published persistence experiments, from nothing or from where they stopped
	$(BIN)/python -m recipes.persistence --out results/persistence --jobs $(JOBS)

clean: ## remove caches, builds and the demo; .venv and results stay
	rm -rf build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

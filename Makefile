# Every target does its own set-up: a machine with python3 and make is enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-real campaign bench lint format lock clean

help:  ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

venv: $(READY)  ## Create .venv with the locked packages and controlplane itself

$(READY): pyproject.toml requirements.lock scripts/make-venv
	scripts/make-venv $(PYTHON) $(VENV)
	@touch $@

lint: $(READY)  ## Format check, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: lint system-packages  ## Lint, types and all tests that need no engine (under 10 minutes)
	$(BIN)/pytest -q -m "not real and not campaign"

test-real: $(READY)  ## Tests against a real vLLM on this CPU (installs it into var/ once)
	$(BIN)/pytest -q -m real tests/real

campaign: $(READY) system-packages  ## The long ones: crashes, fuzz, hang-ups
	$(BIN)/pytest -q -m campaign

bench: $(READY)  ## Run the benchmarks; tables on screen, JSON in benchmarks/results/
	@for b in benchmarks/bench_*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

demo: $(READY)  ## A fleet that moves, the daemon that watches it, and where to look
	$(BIN)/python scripts/demo.py

.PHONY: system-packages
system-packages:
	@scripts/system-packages

lock: $(READY)  ## Resolve requirements.lock anew from pyproject.toml
	scripts/lock $(VENV)

clean:  ## Remove what make made
	rm -rf $(VENV) var build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Every target does its own set-up: a machine with python3 and make is enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-real campaign bench bench-pools bench-control bench-scaling lint format lock clean

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
	$(BIN)/pytest -q -n 2 --dist loadfile -m "not real and not campaign"

test-real: $(READY)  ## Tests against a real vLLM on this CPU (installs it into var/ once)
	$(BIN)/pytest -q -m real tests/real

campaign: $(READY) system-packages  ## The long ones: crashes, fuzz, hang-ups
	$(BIN)/pytest -q -m campaign

bench: $(READY)  ## Run the benchmarks but bench-control and bench-scaling; tables on screen, JSON in benchmarks/results/
	@for b in $(filter-out %/bench_control.py %/bench_scaling.py,$(wildcard benchmarks/bench_*.py)); do echo "== $$b"; $(BIN)/python $$b || exit 1; done

bench-pools: $(READY)  ## What a short and a long pool save, on paper and simulated (QUICK=--quick: seconds)
	$(BIN)/python benchmarks/bench_pools.py $(QUICK)

bench-control: $(READY)  ## Every law of limits against the best constant (hours; QUICK=--quick: minutes)
	$(BIN)/python -m benchmarks.bench_control $(QUICK)

bench-scaling: $(READY)  ## Laws of scaling: cost against missed minutes (a quarter of an hour; QUICK=--quick: minutes)
	$(BIN)/python -m benchmarks.bench_scaling $(QUICK)

demo: $(READY)  ## A simulated fleet under too much load, with control on and off by a key
	$(BIN)/python scripts/demo.py

.PHONY: system-packages
system-packages:
	@scripts/system-packages

lock: $(READY)  ## Resolve requirements.lock anew from pyproject.toml
	scripts/lock $(VENV)

clean:  ## Remove what make made
	rm -rf $(VENV) var build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

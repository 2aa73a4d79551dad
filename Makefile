# `make demo` and `make test` each make the environment they need; nothing but Python 3.11 and make is assumed.
# The constraint takes torch's CPU build. For a GPU: make test CONSTRAINTS=/dev/null
PYTHON ?= python3
CONSTRAINTS ?= constraints/cpu.txt
DEVICE ?= cpu
WORKERS ?= 2
# Virtual machines may announce AMX and not let it run: half precision on a CPU then dies of an illegal instruction.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
VENV := .venv
BIN := $(VENV)/bin
# Workers take whole files, so that what a file trains is trained once.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

.PHONY: all demo test test-all lint docs wheel bench fuzz paper clean
all: lint test

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[plot]'
	touch $@

# Zooniverse's own tool, which reads our files in the tests, wants other versions than ours do: it has an environment of its own.
# axe checks the accessibility of pages; it comes from npm, where there is npm.
$(VENV)/dev: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev]'
	-$(BIN)/python -m venv $(VENV)/panoptes && $(VENV)/panoptes/bin/python -m pip install --quiet --disable-pip-version-check panoptes_aggregation==5.3.1
	-cd $(VENV) && npm pack --silent axe-core@4.14 > /dev/null && tar -xzf axe-core-*.tgz package/axe.min.js
	touch $@

demo: $(VENV)/demo
	$(BIN)/leapfactual demo --out demo

# Before each commit: everything that is not marked slow. `test-all` is what .ci/run does.
test: $(VENV)/dev
	$(PYTEST)

test-all: $(VENV)/dev
	$(PYTEST) -m 'not gpu'

lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/dev
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

# What `pip install leapfactual` alone gives, in an environment of its own. For another Python: make wheel PYTHON=python3.13
wheel:
	$(PYTHON) -m venv --clear $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(VENV)-wheel/dist .
	$(VENV)-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) $(VENV)-wheel/dist/*.whl
	$(VENV)-wheel/bin/python -I tests/wheel.py
	rm -rf $(VENV)-wheel

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks.couplings
	$(BIN)/python -m benchmarks.queries
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.explain
	$(BIN)/python -m benchmarks.diversity
	$(BIN)/python -m benchmarks --out runs/bench

# Hostile inputs of every kind; 1 if anything escapes. make fuzz MINUTES=10 SEED=3
INPUTS ?= 100000
SEED ?= 0
fuzz: $(VENV)/dev
	$(BIN)/python -m fuzz --inputs $(INPUTS) --seed $(SEED) $(if $(MINUTES),--minutes $(MINUTES))

paper: $(VENV)/dev
	$(BIN)/python -m studies squares --out runs/squares
	cp runs/squares/squares.json docs/results/
	cp runs/squares/*.png docs/figures/
	$(BIN)/python -m studies morpho-mnist --device $(DEVICE) --out runs/morpho-mnist
	cp runs/morpho-mnist/morpho-mnist.json docs/results/
	for name in methods targets failures effects; do cp runs/morpho-mnist/$$name.png docs/figures/morpho-mnist-$$name.png; done
	$(BIN)/python -m studies galaxies --device $(DEVICE) --out runs/galaxies
	cp runs/galaxies/galaxies.json docs/results/
	for name in reconstructions.jpg targets.jpg failures.jpg curves.png retraining.png; do cp runs/galaxies/radio-galaxies/$$name docs/figures/galaxies-radio-$$name; done
	cp -r runs/morpho-mnist/shipped/. leapfactual/shipped/
	$(BIN)/python -m studies faces --device $(DEVICE) $(if $(SQUEEZENET),--squeezenet $(SQUEEZENET)) --out runs/faces
	cp runs/faces/faces.json docs/results/
	for name in many worst masks reliable alternatives; do cp runs/faces/$$name.jpg docs/figures/faces-$$name.jpg; done
	cp runs/faces/shipped.safetensors leapfactual/shipped/faces.safetensors

clean:
	rm -rf $(VENV) $(VENV)-wheel demo runs

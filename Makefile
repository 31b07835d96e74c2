# `make demo` and `make test` do everything from a bare Python 3.11: they make .venv and install what they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check --constraint constraints.txt
# pip writes to this log. Its end is shown only if pip fails.
LOG := $(VENV)/install.log
define install
@printf 'Setting up $(VENV): $(1) (first run only) ... '
@{ $(2); } >> $(LOG) 2>&1 || { echo failed; tail -n 20 $(LOG) >&2; echo "The whole log: $(LOG)" >&2; exit 1; }
@echo done
@touch $@
endef
ORACLES := browser,docs,oracles,flower,ray
# One thread per test process: pytest-xdist fills the cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test test-planted test-all check format papers bench bench-long bench-gpu mutate docs figures clean

demo: $(VENV)/.installed-base
	@echo 'FedReach demo: who should train, and how good is the model for the other clients?'
	@$(BIN)/fedreach compare --set method.adaptation=label_shift --out runs/digits

test: $(VENV)/.installed-dev
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal --timeout 600 -m "not slow and not planted" tests src/fedreach papers

# Components with a mistake, and the checks that must catch them: where checks or methods have changed.
test-planted: $(VENV)/.installed-dev
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal --timeout 600 -m planted tests/testing tests/methods tests/test_survivors.py

test-all: $(VENV)/.installed-oracles
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal --hypothesis-profile=all tests src/fedreach papers

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Every table and figure of the five papers at its smallest scale, in runs/; rerun it to resume it.
papers: $(VENV)/.installed-dev
	$(BIN)/python -m papers --all --scale smoke --formats none

# Half an hour on two cores; what takes longer is `make bench-long`, under two hours.
bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/engine.py --write
	$(BIN)/python benchmarks/small_rounds.py --write
	$(BIN)/python benchmarks/adaptation.py --write
	$(BIN)/python benchmarks/flower.py --write

bench-long: $(VENV)/.installed-bench $(VENV)/.installed-oracles
	$(BIN)/python benchmarks/long.py --write
	$(BIN)/python benchmarks/allocation.py --write
	$(BIN)/python benchmarks/decisions.py --clients 100 1000 10000 --limit 15 --write

# torch as it is installed: it has to be a build for CUDA.
bench-gpu: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/gpu.py --zoo
	$(BIN)/python benchmarks/gpu.py --write

# Changes the core line by line, and tries each change with the tests that run through it. It takes a day, stops and goes
# on at any time, and is no part of what has to pass; `python benchmarks/faults/mutants.py` tries a sample.
mutate: $(VENV)/.installed-mutate
	$(TEST_ENV) $(BIN)/mutmut run --max-children 2

$(VENV)/bin/pip:
	@$(PYTHON) -m venv $(VENV)

# torch first and by its exact version, so that no other package installs another build of it.
$(VENV)/.installed-base: pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(call install,FedReach,$(PIP) torch==2.13.0 && $(PIP) --editable .)

$(VENV)/.installed-dev: $(VENV)/.installed-base
	$(call install,development tools,$(PIP) --editable '.[dev]')

$(VENV)/.installed-oracles: $(VENV)/.installed-dev
	$(call install,optional packages,$(PIP) --editable '.[$(ORACLES)]' && $(PIP) --no-deps byzfl==0.0.11)

$(VENV)/.installed-docs: $(VENV)/.installed-base
	$(call install,documentation tools,$(PIP) --editable '.[docs]')

$(VENV)/.installed-mutate: $(VENV)/.installed-dev
	$(call install,mutation testing,$(PIP) --editable '.[mutate]')

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	$(call install,benchmarks,$(PIP) --editable '.[bench]')

# site/index.html, which a browser opens as it is. A dead link, a missing anchor or a name that is not there ends it.
docs: $(VENV)/.installed-docs
	$(BIN)/python docs/build

# The figures of the site anew, by the commands of its gallery, and the picture of the page; needs Chromium.
figures: $(VENV)/.installed-oracles
	$(BIN)/python docs/build/figures.py

clean:
	rm -rf $(VENV) mutants runs site build dist .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

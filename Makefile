# Everything the project needs is installed here, into .venv, on first use.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: demo test check format docs reproduced readme benchmarks test-gpu test-ray test-browser test-slow torture clean

demo: .venv/core  ## EBPL beside its baseline on scikit-learn's digits: a table and a reliability diagram
	$(BIN)/ebpl demo

test: .venv/dev  ## all tests that need no GPU and no browser and are not slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not browser and not slow"

test-slow: .venv/dev  ## further cases of what quicker tests show
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m slow

check: .venv/dev  ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev  ## bring the code into the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/docs  ## build the documentation into site/, where it can be read offline
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The documentation is in site/index.html"

reproduced: .venv/experiments  ## write tables and figures of reproduced/ again from results/; draws images where EBPL_DATA has them
	$(BIN)/python -m experiments table1 --plots-only --seeds 0-7 --datasets $(shell $(BIN)/python -c "from experiments.readme import SHOWN; print(','.join(SHOWN))")
	$(BIN)/python -m experiments labels --plots-only --seeds 3-7
	$(BIN)/python -m experiments best --plots-only --seeds 0-7
	$(BIN)/python -m experiments parts --plots-only --seeds 3-7
	$(BIN)/python -m experiments field --plots-only --seeds 3-7
	$(BIN)/python -m experiments ablation --plots-only --seeds 0-2
	rm -f reproduced/*.svg

readme: .venv/experiments  ## write the table and the figure of README.md again from results/
	$(BIN)/python -m experiments.readme
	$(BIN)/python -m docs.tools.figure

benchmarks: .venv/experiments  ## write tables and figure of benchmarks/ again from its records
	$(BIN)/python -m benchmarks.report

test-gpu:  ## tests that need a GPU, with the Python that is there
	PYTHONPATH=src python3 -m pytest -m gpu tests

test-ray: .venv/dev  ## the cells over a local Ray cluster; installs Ray, half a gigabyte
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[cluster]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/experiments

test-browser: .venv/dev  ## the report and the documentation in Debian's Chromium; installs it where it is not there
	command -v chromium > /dev/null || $(ROOT) apt-get install --yes --no-install-recommends chromium
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/reporting tests/docs

torture: .venv/dev  ## attacks that are too long for the tests: kills, damaged files, hostile input; about 15 minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --record results/torture/torture.json

clean:  ## remove what make made
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/core: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing into .venv (once)"
	@$(INSTALL) .
	@touch $@

.venv/experiments: pyproject.toml constraints.txt | .venv/core
	@$(INSTALL) '.[experiments]'
	@touch $@

.venv/docs: pyproject.toml constraints.txt | .venv/core
	@$(INSTALL) '.[docs]'
	@touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/core
	@$(INSTALL) '.[dev]'
	@touch $@

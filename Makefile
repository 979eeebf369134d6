# Two commands for a newcomer: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The smoke set also runs on the newest Python found here, with the newest jaxlib (make smoke NEWEST=python3.13).
NEWEST ?= $(shell for p in python3.13 python3.12 $(HOME)/.pyenv/versions/3.13*/bin/python $(HOME)/.pyenv/versions/3.12*/bin/python; \
	do $$p --version >/dev/null 2>&1 && { echo $$p; break; }; done)

.PHONY: demo test test-all smoke lint bench clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m meshrt demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto -m "not slow" tests

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto tests

smoke:
ifeq ($(strip $(NEWEST)),)
	@echo "smoke: no Python newer than 3.11 is installed here; nothing was run"
else
	test -e .venv-newest/.installed || { $(NEWEST) -m venv .venv-newest && .venv-newest/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]' && touch .venv-newest/.installed; }
	.venv-newest/bin/python -m pytest -n auto -m smoke tests
endif

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check meshrt propagation collectives tests benchmarks examples
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean:
	rm -rf $(VENV) .venv-newest .pytest_cache .ruff_cache .mypy_cache

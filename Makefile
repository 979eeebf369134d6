# Two commands for a newcomer: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The smoke set also runs on the newest Python found here, with the newest jaxlib (make smoke NEWEST=python3.13).
NEWEST ?= $(shell for p in python3.13 python3.12 $(HOME)/.pyenv/versions/3.13*/bin/python $(HOME)/.pyenv/versions/3.12*/bin/python; \
	do $$p --version >/dev/null 2>&1 && { echo $$p; break; }; done)

# The compilers whose tests `make test-tpu` runs; with cuda12-compiler too where jaxlib and the CUDA plugin are of one version.
COMPILERS ?= tpu

# The suites start hundreds of processes: they read the bytecode that the first one wrote, wherever the caller has it off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs page test test-all test-libraries test-tpu smoke lint bench bench-communication bench-kernels bench-launch protos clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m meshrt demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n auto -m "not slow" tests

test-all: $(VENV)/.installed-dev
	HYPOTHESIS_PROFILE=default $(BIN)/python -m pytest -n auto tests

# Runs the tests of libraries written for JAX, with JAX and with meshrt, and writes docs/libraries.md
# (make test-libraries LIBRARIES="optax chex").
test-libraries: $(VENV)/.installed-dev
	$(BIN)/python -m tests.libraries $(LIBRARIES)

.venv-tpu/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-tpu
	.venv-tpu/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test,$(COMPILERS)]'
	@touch $@

test-tpu: .venv-tpu/.installed
	.venv-tpu/bin/python -m pytest -m tpu --timeout=600 tests

smoke:
ifeq ($(strip $(NEWEST)),)
	@echo "smoke: no Python newer than 3.11 is installed here; nothing was run"
else
	test -e .venv-newest/.installed || { $(NEWEST) -m venv .venv-newest && .venv-newest/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]' && touch .venv-newest/.installed; }
	.venv-newest/bin/python -m pytest -n auto -m smoke tests
endif

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check meshrt propagation collectives tests benchmarks examples docs/site
	$(BIN)/lint-imports
	$(BIN)/mypy

# The page of `meshrt inspect --html`: its sources and the npm packages that they import, as the bundle that is shipped.
PAGE := meshrt/inspect/page
$(PAGE)/node_modules/.installed: $(PAGE)/package.json $(PAGE)/package-lock.json
	cd $(PAGE) && npm ci --no-audit --no-fund --ignore-scripts
	@touch $@

page: $(PAGE)/node_modules/.installed
	cd $(PAGE) && node build.mjs

# The documentation site, into build/site; a link that leads nowhere is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-communication: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.communication $(BENCH_ARGS)

# What the compiler for TPUs says of kernels, beside programs of array operations; without hardware.
bench-kernels: .venv-tpu/.installed
	.venv-tpu/bin/python -m benchmarks.kernels $(BENCH_ARGS)

bench-launch: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.launch $(BENCH_ARGS)

# What coordinators and agents say to each other, as Python. The oldest grpcio-tools that the extra `hosts` allows: code
# that a newer one makes is refused by older libraries.
protos:
	test -e .venv-protos || { $(PYTHON) -m venv .venv-protos && .venv-protos/bin/python -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.76.0'; }
	.venv-protos/bin/python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --pyi_out=. meshrt/launch/hosts/wire/coordinator.proto

clean:
	rm -rf $(VENV) .venv-newest .venv-tpu .venv-protos .pytest_cache .ruff_cache .mypy_cache

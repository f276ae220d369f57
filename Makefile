# The developer loop. `make help` lists the targets; every one does its own set-up.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?=
DEVICE ?=
BENCH ?=

VENV := $(CURDIR)/.venv
PY := $(VENV)/bin/python
CARGO_FLAGS := --release --locked
# With the failpoints at which the kill tests end a side of the arena.
RUST_TESTS := $(CARGO_FLAGS) -p denizen-shm -p denizen-frontend --features denizen-shm/failpoints --no-fail-fast

export VIRTUAL_ENV := $(VENV)
export PATH := $(VENV)/bin:$(PATH)
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYO3_PYTHON := $(PY)

RUST_SOURCES := $(shell find frontend-rs/src shm/src shm/binding -name '*.rs' 2>/dev/null) \
	Cargo.toml Cargo.lock frontend-rs/Cargo.toml shm/Cargo.toml shm/binding/Cargo.toml

.DEFAULT_GOAL := help
.PHONY: help serve setup test test-rust test-python test-gpu soak-gpu gpu-bundle bench-gpu fuzz lint format wheel clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# GPUs need FlashInfer too: when DEVICE names one, or names nothing and the machine has one.
GPUS := $(if $(DEVICE),$(findstring cuda,$(DEVICE)),$(wildcard /dev/nvidia[0-9]*))

serve: $(VENV)/.installed $(if $(GPUS),$(VENV)/.cuda) ## serve a model: PORT=8000 MODEL=NAME=PATH_OR_HUB_ID DEVICE=cpu or cuda:0
	exec denizen serve --host $(HOST) --port $(PORT) $(if $(MODEL),--model '$(MODEL)') $(if $(DEVICE),--devices $(DEVICE))

setup: $(VENV)/.installed $(VENV)/.tools ## create .venv and build and install everything

test: test-rust test-python ## run all tests

test-rust: $(VENV)/.installed
	@echo "== Rust tests"
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run $(RUST_TESTS); \
	else \
		cargo test $(RUST_TESTS); \
	fi

test-python: $(VENV)/.installed $(VENV)/.tools
	@echo "== Python tests"
	$(PY) -m pytest

gpu-bundle: $(VENV)/.installed ## collect in .gpu/ what a GPU machine without network needs
	$(PY) scripts/gpu_bundle.py

# On that machine: its own python3 has PyTorch and Triton; the sources and .gpu/ are all that travelled.
test-gpu: ## on a GPU machine, after gpu-bundle: check and time the kernels
	. .gpu/env.sh && python3 tests/gpu/run_all.py

soak-gpu: ## on a GPU machine, after gpu-bundle: random load for five minutes, every state watched
	. .gpu/env.sh && python3 tests/gpu/soak.py --minutes 5

bench-gpu: ## on a GPU machine, after gpu-bundle: measure over HTTP; BENCH="--parts loops" or BENCH="asr" to choose
	scripts/bench_gpu.sh $(BENCH)

fuzz: ## fuzz the arena's readers, a minute each
	shm/fuzz/run.sh 60

lint: $(VENV)/.installed $(VENV)/.tools ## rustfmt, clippy, ruff, mypy
	cargo fmt --all --check
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	ruff check .
	ruff format --check .
	cd python && mypy -p denizen

format: $(VENV)/.tools ## rewrite the sources in the house format
	cargo fmt --all
	ruff check --fix --quiet . ; ruff format .

wheel: $(VENV)/.python dist-data/scripts/denizen ## build dist/*.whl: binary, extension and Python packages
	maturin build --release --locked --out dist

clean: ## remove everything that was built, .venv too
	rm -rf target dist dist-data/scripts/denizen .venv python/denizen/_native*.so

# --- set-up steps, each with its own stamp ---

$(VENV)/.python: constraints.txt
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust 1.88 or newer (rustup.rs), then run make again" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) is missing: install Python 3.11 or newer, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1): run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "== Creating .venv"
	$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet maturin || { echo "maturin cannot be installed: check the network, or pip's settings" >&2; exit 1; }
	@touch $@

dist-data/scripts/denizen: $(RUST_SOURCES)
	@echo "== Building the denizen binary (a few minutes the first time)"
	cargo build $(CARGO_FLAGS) -p denizen-frontend
	@mkdir -p $(@D)
	cp target/release/denizen $@

# The extension, the Python packages (editable) and all that serving needs.
$(VENV)/.installed: $(VENV)/.python dist-data/scripts/denizen pyproject.toml
	@echo "== Installing Denizen and its dependencies (PyTorch is a large download the first time, 5 GB on the disk)"
	maturin develop --release --locked --extras serve
	@touch $@

# FlashInfer, which only GPUs need.
$(VENV)/.cuda: $(VENV)/.installed
	@echo "== Installing what NVIDIA GPUs need"
	maturin develop --release --locked --extras cuda
	@touch $@

# What only tests, benchmarks and linters need.
$(VENV)/.tools: $(VENV)/.installed
	@echo "== Installing the development tools"
	maturin develop --release --locked --extras test,bench,lint
	@touch $@

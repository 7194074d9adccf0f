# Trainyard's commands. Each makes what it needs: `make demo` and `make test` work on a fresh machine
# with Python 3.11 and make.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
COMMAND := $(BIN)/trainyard
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
RAY_STAMP := $(VENV)/.installed-ray
VLLM_VENV := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed
HEADLESS ?=
PORT ?=
SET ?=
STRESS ?=
ONLY ?=

# Bytecode is kept even where the environment forbids it, as images do: else every process compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo up test check lint types layers format bench install system clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 16

demo: $(COMMAND) system ## train a small agent on real code and show it (HEADLESS=1: end with the run)
	@$(COMMAND) demo $(if $(HEADLESS),--headless) $(if $(PORT),--port $(PORT)) $(foreach s,$(SET),--set $(s))

up: $(COMMAND) system ## start the services alone
	@$(COMMAND) up $(if $(PORT),--port $(PORT))

test: $(DEV_STAMP) system-test ## every behaviour once, in minutes [STRESS=3: so often, beside two busy processes]
	@deploy/setup/docker.sh run $(MAKE) --no-print-directory test-here

.PHONY: test-here
test-here: # with the Docker daemon that answers, if one does
	@$(BIN)/python -m $(if $(STRESS),tests.stress $(STRESS),pytest --times build/tests/times.json) -n auto --dist loadgroup

.PHONY: test-times
test-times: $(DEV_STAMP) ## the seconds of the tests by folder, and the slowest, as the last make test measured them
	@$(BIN)/python -m tests.times build/tests/times.json

.PHONY: mutants
mutants: $(DEV_STAMP) system-test ## small faults in the product, which make test must notice [ONLY=name]
	@$(BIN)/python -m tests.mutants $(ONLY)

# What each part of the drills needs; all parts need it all.
DRILLS_RAY = $(if $(filter-out ray vllm,$(ONLY)),,$(RAY_STAMP))
DRILLS_VLLM = $(if $(filter-out vllm,$(ONLY)),,$(VLLM_STAMP))
DRILLS_DOCKER = $(if $(filter-out adversary docker,$(ONLY)),,deploy/setup/docker.sh run)
.PHONY: drills drills-here
drills: $(DEV_STAMP) $(DRILLS_RAY) $(DRILLS_VLLM) system-test ## what kills, waits or needs heavy servers, an hour or more [ONLY=part, a folder of tests/drills]
	@$(DRILLS_DOCKER) $(MAKE) --no-print-directory drills-here

drills-here: # with the Docker daemon that answers, if one does; the first time two example images are built in it
	@if host=$$($(if $(DRILLS_DOCKER),deploy/setup/docker.sh status,false)); then \
		DOCKER_HOST=$$host timeout 300 $(BIN)/python deploy/images/build_examples.py .trainyard/examples || true; fi
	@$(BIN)/python -m tests.drills $(ONLY)

.PHONY: lock
lock: ## resolve the lists anew, without the constraints, and write requirements/constraints.txt
	@deploy/setup/venv.sh "$(PYTHON)" "$(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet $(foreach list,web engine dev ray,-r requirements/$(list).txt)
	@mkdir -p build; head -2 requirements/constraints.txt >build/constraints.txt
	@$(BIN)/python -m pip freeze --exclude-editable | grep -v '^torch==' >>build/constraints.txt
	@mv build/constraints.txt requirements/constraints.txt

.PHONY: ray
ray: $(RAY_STAMP) ## Ray, for a cluster on this machine

$(RAY_STAMP): $(STAMP) requirements/ray.txt
	@deploy/setup/python.sh "$(PYTHON)" "$(VENV)" ray
	@touch $@

.PHONY: vllm
vllm: $(VLLM_STAMP) ## vLLM for machines without GPU, in an environment of its own

$(VLLM_STAMP): requirements/vllm.txt
	@deploy/setup/vllm.sh "$(PYTHON)" "$(VLLM_VENV)"
	@touch $@

.PHONY: test-cluster
test-cluster: $(DEV_STAMP) ## sandboxes on a real cluster: KUBECONFIG=… IMAGE=… [SET='{"connect": "exec"}'], see tests/cluster/README.md
	KUBECONFIG="$(KUBECONFIG)" CLUSTER_IMAGE="$(IMAGE)" CLUSTER_SET='$(SET)' $(BIN)/python -m pytest tests/cluster -m cluster

check: $(DEV_STAMP) $(RAY_STAMP) ## style, types, layers, and that make test can collect its tests, all at once
	@$(MAKE) --no-print-directory --jobs --keep-going --output-sync lint types layers pages collection

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_STAMP) $(RAY_STAMP)
	$(BIN)/mypy

layers: $(DEV_STAMP)
	$(BIN)/lint-imports

.PHONY: pages
pages: $(DEV_STAMP)
	$(BIN)/djlint templates --check --quiet

.PHONY: collection
collection: $(DEV_STAMP)
	@out=$$($(BIN)/python -m pytest --collect-only -qq 2>&1) || { echo "$$out"; exit 1; }

format: $(DEV_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/djlint templates --reformat --quiet

bench: $(DEV_STAMP) system ## measure; tables and bench/results/*.json
	@for name in $$(cd bench && grep -l '"__main__"' *.py | grep -v -e ^gpu -e _offline | sed 's/\.py$$//') live web; do \
		echo "== $$name"; $(BIN)/python -m bench.$$name $(if $(QUICK),--quick) || exit 1; done

# With PYTHON=… on the command line or in the environment that Python is used as it is, and nothing is installed.
GPU_PYTHON = $(if $(filter file,$(origin PYTHON)),$(BIN)/python,$(PYTHON))
.PHONY: gpu
gpu: $(if $(filter file,$(origin PYTHON)),$(DEV_STAMP)) ## everything that wants a GPU, stopped after 19 minutes at most [PYTHON=python3 QUICK=1 DEVICE=cpu]
	@$(GPU_PYTHON) -m bench.gpu $(if $(QUICK),--quick) $(if $(DEVICE),--device $(DEVICE))

install: $(COMMAND) ## the environment and the command .venv/bin/trainyard

# Compiling every file takes as long as the rest of the installation; Python compiles what it imports.
$(STAMP): requirements/web.txt requirements/engine.txt requirements/constraints.txt
	@PIP_OPTIONS=--no-compile deploy/setup/python.sh "$(PYTHON)" "$(VENV)" web engine
	@touch $@

$(COMMAND): $(STAMP) pyproject.toml setup.py # runs this checkout
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-index --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): $(STAMP) requirements/dev.txt
	@deploy/setup/python.sh "$(PYTHON)" "$(VENV)" dev
	@# Warnings of a package's syntax appear when it is compiled, and are errors in tests.
	@$(BIN)/python -W ignore -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

system: ## bubblewrap, git, patch: installed as root, else named
	@deploy/setup/system.sh bwrap:bubblewrap git:git patch:patch unshare:util-linux

.PHONY: system-test
system-test: ## also a browser for the end-to-end tests, and Node.js for tasks in JavaScript
	@deploy/setup/system.sh bwrap:bubblewrap git:git patch:patch unshare:util-linux chromium:chromium node:nodejs

.PHONY: docker docker-stop
docker: ## a Docker daemon for sandboxes: the one that answers, else (as root) one of our own
	@deploy/setup/docker.sh start

.PHONY: docker-examples
docker-examples: $(DEV_STAMP) docker ## two example images and their dataset rows, in .trainyard/examples
	@DOCKER_HOST=$$(deploy/setup/docker.sh status) $(BIN)/python deploy/images/build_examples.py .trainyard/examples

docker-stop: ## stop our own Docker daemon
	@deploy/setup/docker.sh stop

clean: docker-stop ## remove the environment and the data folder
	rm -rf $(VENV) $(VLLM_VENV) .trainyard build

# Two commands on a fresh machine: `make bench` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# what is imported is compiled then: to compile all of torch takes half of the installation
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# three processes, whatever the machine has: the bounds of tests are for worlds of 4 ranks on 2 cores
PARALLEL = $(BIN)/python -m pytest --numprocesses 3 --dist worksteal
# tests of the repository itself: README, notebooks, Dockerfile, manifests, tools
REPOSITORY = tests/project
PROPERTIES = $(shell grep -rl hypothesis tests replay/tests --include='test_*.py')
# the bytecode of package and tests is kept: without it each of several hundred processes compiles all of it again
unexport PYTHONDONTWRITEBYTECODE
# the files with tests of a mark: to collect all tests takes 6 s, and each process does it
FILES_WITH = $(shell grep -rl 'pytest\.mark\.$(1)' tests replay/tests --include='test_*.py')
BENCH = timing=quick timing.case_s=2.5 benchmark=[p2p_latency,p2p_bandwidth,all_reduce] dtype=float32 layout=1x2 sizes=[8,512,32KiB,512KiB,8MiB]

.DEFAULT_GOAL := help
.PHONY: help bench test test-long check accuracy coverage certainty decisions locate documents jobs versions perf side-by-side virtual-hosts virtual-hosts-remove faults mutations gpu-check gpu-wheels wheel pyz image-test clean

help: ## these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

bench: $(VENV)/run ## the main job: gloo and MPI, point to point and all_reduce, 2 ranks; tables and parquet
	$(BIN)/commbench -m backend=gloo,mpi $(BENCH)

test: $(VENV)/test ## the test suite, without what is marked long
	$(PARALLEL) -m "not long" --ignore $(REPOSITORY)

test-long: $(VENV)/test ## the rest of it: more worlds of each kind, virtual hosts, Slurm, faults, more random examples
	$(PARALLEL) -m "long and not serial" $(call FILES_WITH,long)
	$(PARALLEL) -m "not long" --hypothesis-profile thorough $(PROPERTIES)
	$(BIN)/python -m pytest -m "long and serial" $(call FILES_WITH,serial)

check: $(VENV)/test ## ruff, mypy --strict, import-linter, tests of the repository itself: README, notebooks, manifests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for tool in perf faults gpu mutations accuracy coverage certainty decisions locate documents hosts jobs schema versions pyz; do MYPYPATH=tools:tools/$$tool:tools/gpu/probes:tests/support $(BIN)/mypy $$(git ls-files "tools/$$tool/*.py") || exit 1; done
	$(BIN)/mypy notebooks/notebook_figures.py notebooks/notebook_tables.py
	$(BIN)/lint-imports
	$(INSTALL) kubernetes-validate
	$(PARALLEL) -m "not long" $(REPOSITORY)

coverage: $(VENV)/test ## how often the interval holds the truth on this machine, about 10 minutes; rewrites docs/trust.md
	$(BIN)/python tools/coverage

certainty: $(VENV)/test ## whether numbers with a narrow interval repeat better, about 10 minutes; rewrites docs/trust.md
	$(BIN)/python tools/certainty

decisions: $(VENV)/test ## how often accept and watch are right, simulated, about four minutes; rewrites docs/acceptance.md and docs/watch.md
	$(BIN)/python tools/decisions

locate: $(VENV)/test ## how often a search finds a planted slow node, simulated, about five minutes; rewrites docs/locate.md
	$(BIN)/python tools/locate

accuracy: $(VENV)/test ## what sums of gloo and Open MPI are, and in which orders they add, two minutes; rewrites docs/accuracy.md
	$(BIN)/python tools/accuracy

documents: $(VENV)/test ## the experiments of five published documents, about ten minutes; rewrites docs/experiments.md
	$(BIN)/python tools/documents

jobs: $(VENV)/test ## training jobs on gloo against the replay of their traces, about 15 minutes; rewrites docs/workloads.md
	$(BIN)/python tools/jobs

versions: $(VENV)/test ## releases of gloo, Open MPI and MPICH in turn, about 25 minutes; rewrites docs/versions.md
	$(BIN)/python tools/versions

perf: $(VENV)/test ## the tool's own speed as ratios, measured in alternating blocks; stored in perf/
	$(BIN)/python tools/perf

side-by-side: $(VENV)/test ## OSU (OPENMPI=DIR, MPICH=DIR: built for each), iperf3 and commbench in turn; rewrites docs/side_by_side.md
	$(BIN)/python tools/perf/side_by_side.py $(if $(call given,OPENMPI),--openmpi $(call given,OPENMPI)) $(if $(call given,MPICH),--mpich $(call given,MPICH))

faults: $(VENV)/test ## every fault in every world and phase, about a quarter of an hour; rewrites docs/faults.md
	$(BIN)/python tools/faults

mutations: $(VENV)/test ## changes of one token that `make test` must notice, about six minutes
	$(BIN)/python tools/mutations

# only from make's command line: variables of these names in the environment mean something else
given = $(if $(filter command,$(origin $(1))),$($(1)))

# uses the installed Python, torch and CUDA: PYTHON=... chooses one, GPU_CHECK_DIR=... the folder
gpu-check: ## what needs a GPU: CALL=1, 2, 3 or several, six minutes each, evidence in gpu-check/ (docs/gpu.md)
	@$(PYTHON) tools/gpu --call $(or $(call given,CALL),1) $(or $(call given,GPU_CHECK_DIR),gpu-check)

gpu-wheels: ## wheels in gpu-wheels/ for a GPU machine without a network: WHEELS_PYTHON=3.12, WHEELS_MACHINE=aarch64 there (docs/gpu.md)
	tools/gpu/wheels.sh gpu-wheels $(or $(call given,WHEELS_PYTHON),3.12) $(PYTHON) $(or $(call given,WHEELS_MACHINE),x86_64)

virtual-hosts: $(VENV)/run ## hosts on this machine, as network namespaces (root): NODES=8 MBIT=100 SLOW=node5=25 (docs/acceptance.md)
	@$(BIN)/python tools/hosts make virtual-hosts $(or $(call given,NODES),8) "$(call given,MBIT)" $(call given,SLOW)

virtual-hosts-remove: ## take these hosts away, with what still runs on them
	@$(BIN)/python tools/hosts remove virtual-hosts

wheel: $(VENV)/bin/python ## dist/: commbench, commbench-replay, and the one package it needs that PyPI has as source only
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . ./replay 'antlr4-python3-runtime==4.9.*'
	@echo "pip install --only-binary=:all: --find-links dist 'commbench[all]' commbench-replay"

pyz: $(VENV)/bin/python ## commbench.pyz: one file with all that a run needs beside torch and numpy
	$(BIN)/python tools/pyz commbench.pyz

image-test: ## build the image with docker, podman or buildah, run the main job in it, end one with SIGTERM
	tools/image/image_test.sh

clean: ## remove the virtual environments and caches, keep results/
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run: setup.cfg replay/setup.cfg constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable '.[openmpi]' --editable ./replay
	@touch $@

# both MPI libraries: `prterun` and `mpiexec.hydra` differ, `mpirun` belongs to the one installed last
$(VENV)/test: $(VENV)/run
	$(INSTALL) --editable '.[openmpi,mpich,test]' --editable ./replay
	@touch $@

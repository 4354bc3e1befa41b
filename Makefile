# Two commands do everything: `make demo` and `make test`. Each installs what it needs into .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
MAKEFILE := $(firstword $(MAKEFILE_LIST))
TOPOLOGY ?= topologies/demo.yaml
# Capabilities whose absence fails the tests instead of skipping them, e.g. REQUIRE="loadgen dynamo vllm slurm"
REQUIRE ?=
PYTEST_ARGS ?=
PYTEST = $(BIN)/python -m pytest $(foreach name,$(REQUIRE),--require=$(name))

.PHONY: help demo sweep-demo sweep-vllm test test-slurm test-others check slurm-beside setup assets lint types bench-peers bench-client bench-rest proof-server proof-submission scale bench-slurm bench-staging clean

help:
	@echo "make demo    set up, then serve, measure and judge topologies/demo.yaml on this machine"
	@echo "make sweep-demo  two splits of real engines on the CPU, 1P1D and 1P2D, and which is better (15 minutes on two busy cores)"
	@echo "make sweep-vllm  the same searched, in Slurm jobs of which one is cut and resumed (root, Slurm; 20 minutes and more)"
	@echo "make test    set up, then run the tests (skips what this machine cannot run, and says why)"
	@echo "make check   lint, types, tests: what CI runs; the tests in two halves side by side, test-slurm and test-others"
	@echo "make setup   only the environment in .venv;  make assets: the tiny model and data set in assets/"
	@echo "make bench-client   what load clients cost, side by side (after make bench-peers: with endpoints and AIPerf)"
	@echo "make proof-server   a full 600 s Server run of llama2-70b's shape against the oracle (idle machine)"
	@echo "make proof-submission   nine cells of three benchmarks at official settings against an oracle (30 minutes)"
	@echo "make scale   22P28D on 18 and 512 replicas on 64 Slurm nodes, 10,000 requests each (root, Slurm; 15 minutes)"
	@echo "make bench-rest     what an aborted overload leaves for the next probe of a search (some minutes)"
	@echo "make bench-staging   stage copy against cp, rsync and rclone; four nodes from one store (10 GB of disk)"
	@echo "make bench-slurm    what the controller adds to a Slurm job, against a script by hand (root, Slurm)"
	@echo "make clean   remove .venv, assets and caches (runs/ stays)"

setup: $(VENV)/.installed

# One at a time in a checkout: two pips in one environment break it. The one that waited looks again what is left to do.
define LOCKED
if command -v flock >/dev/null; then \
	flock --nonblock --conflict-exit-code 75 $(MAKEFILE) $(1); code=$$?; \
	if [ $$code != 75 ]; then exit $$code; fi; \
	echo "Another make sets up .venv here; waiting until it has ended ..." >&2; \
	exec flock $(MAKEFILE) $(1); \
else exec $(1); fi
endef

$(VENV)/.installed: requirements.lock pyproject.toml hatch_build.py dynamo_mlperf/load/_pump.c
ifdef HAS_LOCK
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on PATH. Install Python 3.11 with venv (Debian 12: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3.11" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V), but the pinned engine builds are for Python 3.11. Name one: make PYTHON=/path/to/python3.11" >&2; exit 3; }
	@echo "Setting up .venv (about 4 GB; a minute or two with warm package caches) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python -m venv failed (Debian: apt-get install python3-venv)" >&2; exit 3; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock || { echo "pip could not install requirements.lock. If it named torch: torch==2.13.0+cpu is PyTorch's CPU build, which the default package index does not carry; point your pip at an index or folder that has it (pip config set global.extra-index-url URL, or PIP_FIND_LINKS=DIR) and run make setup again." >&2; exit 3; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
else
	@$(call LOCKED,$(MAKE) --silent HAS_LOCK=1 $@)
endif

assets: setup
	@$(BIN)/dynamo-mlperf init --assets assets

demo: assets
	@$(BIN)/dynamo-mlperf run $(TOPOLOGY)

# Two splits of real engines on the CPU, one after another in one deployment; never part of CI.
sweep-demo: assets
	@$(BIN)/dynamo-mlperf sweep topologies/demo-sweep.yaml

# Real engines on three Slurm nodes of this machine's own: searched, cut, resumed (tests/performance/vllm_sweep.py).
sweep-vllm: setup
	@$(BIN)/python -m tests.performance.vllm_sweep

test: assets
	@$(PYTEST) $(PYTEST_ARGS)

# Two halves that share no port, no process and no deployment: the nodes of a Slurm are namespaces of their own, and
# what starts engines on this machine itself, or real ones anywhere, is in the other half.
ON_SLURM := (slurm or accounting) and not vllm
TEST_SLURM = $(PYTEST) -m "$(ON_SLURM)" $(PYTEST_ARGS)
SLURM_LOG := $(VENV)/test-slurm.log

test-slurm: assets
	@$(TEST_SLURM)

slurm-beside: assets
	@$(TEST_SLURM) >$(SLURM_LOG) 2>&1; code=$$?; echo; cat $(SLURM_LOG); exit $$code

test-others: assets
	@$(PYTEST) -m "not ($(ON_SLURM))" $(PYTEST_ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

check: lint assets
	@echo "The tests on Slurm run beside the others and tell it in $(SLURM_LOG), which is shown when they have ended."
	@$(MAKE) --no-print-directory --jobs=3 types slurm-beside test-others

# Clients to compare with, in throw-away environments; never part of CI. endpoints needs Python 3.12.
PEERS ?= .bench-peers
PYTHON312 ?= python3.12
ENDPOINTS ?= git+https://github.com/mlcommons/endpoints@ea332753
AIPERF ?= aiperf==0.13.0

bench-peers:
	@test -x $(PEERS)/aiperf/bin/aiperf || { $(PYTHON) -m venv $(PEERS)/aiperf && $(PEERS)/aiperf/bin/pip install --quiet '$(AIPERF)'; }
	@command -v $(PYTHON312) >/dev/null || { echo "$(PYTHON312) is not on PATH, and endpoints needs it; name it: make bench-peers PYTHON312=/path/to/python3.12. AIPerf is in $(PEERS)." >&2; exit 3; }
	@test -x $(PEERS)/endpoints/bin/inference-endpoint || { $(PYTHON312) -m venv $(PEERS)/endpoints && $(PEERS)/endpoints/bin/pip install --quiet '$(ENDPOINTS)'; }

bench-client: assets
	@$(BIN)/python -m tests.performance.client --peers $(PEERS) $(BENCH_ARGS)

PROOF_DIR ?= runs/proof-server
PROOF_QPS ?= 40
proof-server: setup
	@$(BIN)/python -m tests.performance.client_truth --official --qps $(PROOF_QPS) $(PROOF_DIR)

# Performance, accuracy and compliance of three benchmarks by real LoadGen at official settings; goes on where it was cut.
PROOF_SUBMISSION ?= runs/proof-submission
proof-submission: setup
	@$(BIN)/python -m tests.performance.submission $(PROOF_SUBMISSION) $(BENCH_ARGS)

# Simulated workers on a Slurm of this machine's own (slurm/devcluster): needs root and Slurm's programs.
scale: setup
	@$(BIN)/python -m tests.performance.scale $(SIZES)

bench-rest: assets
	@$(BIN)/python -m tests.performance.rest $(BENCH_ARGS)

bench-slurm: setup
	@$(BIN)/python -m tests.performance.slurm_overhead

# A 4 GiB model against cp, rsync and rclone, then four nodes from one store; some minutes, 10 GB of disk.
bench-staging: setup
	@$(BIN)/python -m tests.performance.staging

clean:
	rm -f dynamo_mlperf/load/*.so
	rm -rf $(VENV) assets .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

# Every target sets up what it needs itself. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
PRESET := release
FUZZ_SECONDS ?= 60
KILLS ?= 200
POWER_CUTS ?= 50
HOURS ?= 24
FRAMES ?= 1000000
FLIPS ?= 2000
SEEDS ?= 100000
SEED ?= 1
MINUTES ?= 10
SEED_START ?= 0
WERROR ?= $(if $(CI),ON,OFF)
PYTEST_ARGS ?=
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

JOBS := $(shell nproc)
# Files of Python tests that run at once: each may have daemons of its own, and waits for them a good part of its time.
PYTEST_JOBS ?= $(shell n=$$(nproc); echo $$((n < 3 ? n + 1 : 4)))
# Native tests that do: some wait for a time-out.
CTEST_JOBS ?= $(shell echo $$(($$(nproc) + 1)))
# What the extension modules are made of.
NATIVE := $(shell find native cmake -type f ! -name '*_test.cc' ! -name '*_fuzz.cc') CMakeLists.txt CMakePresets.json
CXX_FILES := $(shell find native bench/native tests/sim tests/integration/native -name '*.h' -o -name '*.cc')

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

.PHONY: build native demo test check
build: $(VENV)/.built ## build the package into .venv of this checkout
	@echo "built: $(VENV)/bin/halfstep"

native: build ## native tests, the simulator and the programs of bench/
	@echo "native tests and benchmarks: first time about five minutes on two cores, 500 MB under build/"
	cmake --build --preset $(PRESET)

CODEC ?= off
demo: build $(VENV)/.models ## the main job: KV cache to flash and back, tokens identical; CODEC=exact: stored coded
	$(PYTHON) -m halfstep.tools.demo --codec $(CODEC)

test: native $(VENV)/.models ## all native and Python tests
	@status=0; \
	ctest --preset $(PRESET) -j $(CTEST_JOBS) --no-tests=error || status=$$?; \
	$(PYTHON) -m pytest -n $(PYTEST_JOBS) --dist loadfile --max-worker-restart 0 $(PYTEST_ARGS) || status=$$?; \
	exit $$status

.PHONY: lint
lint: build ## format, lint and types
	clang-format --dry-run -Werror $(CXX_FILES)
	ruff format --check
	ruff check
	mypy

check: lint native ## what lint looks at, stubs, layering and unit tests, in under two minutes
	ctest --preset $(PRESET) -j $(CTEST_JOBS) --no-tests=error
	$(PYTHON) -m pytest -m "not slow" tests/unit

.PHONY: asan tsan fuzz torture bounded-units
asan: $(VENV)/.tools ## all tests under AddressSanitizer and UndefinedBehaviorSanitizer
	scripts/sanitize.sh asan $(PYTEST_ARGS)

tsan: $(VENV)/.tools ## all tests under ThreadSanitizer
	scripts/sanitize.sh tsan $(PYTEST_ARGS)

bounded-units: UNITS = 100000
bounded-units: $(VENV)/.tools ## UNITS (100000) units with hazards through the quantiser: bounded or exact, the same on every path
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET) --target compress_ubq_hazards_test
	HALFSTEP_UNITS=$(UNITS) build/$(PRESET)/native/compress/compress_ubq_hazards_test

fuzz: $(VENV)/.tools ## every fuzz target for FUZZ_SECONDS (60)
	scripts/setup.sh fuzz
	scripts/fuzz.sh $(FUZZ_SECONDS)

torture: build ## KILLS (200), POWER_CUTS (50), HOURS (24) of churn, FRAMES (1000000) bad ones, FLIPS (2000) of a byte
	@status=0; \
	$(PYTHON) -m tests.torture.kills --rounds $(KILLS) || status=$$?; \
	$(PYTHON) -m tests.torture.power_cuts --rounds $(POWER_CUTS) || { code=$$?; [ $$code -eq 77 ] || status=$$code; }; \
	$(PYTHON) -m tests.torture.churn --hours $(HOURS) || status=$$?; \
	$(PYTHON) -m tests.torture.malformed --frames $(FRAMES) || status=$$?; \
	$(PYTHON) -m tests.torture.flips --flips $(FLIPS) || status=$$?; \
	exit $$status

.PHONY: damaged-units cut-decodes
damaged-units: UNITS = 1000000
damaged-units: $(VENV)/.tools ## UNITS (1000000) damaged units through each codec's decoder under ASan and UBSan: under ten minutes
	cmake --preset asan
	cmake --build --preset asan --target compress_damaged_units_test
	printf '%s\n' raw bfx ubq zstd | HALFSTEP_DAMAGED_UNITS=$(UNITS) HALFSTEP_SEED=$(SEED) UBSAN_OPTIONS=print_stacktrace=1 \
	  xargs -P $(JOBS) -I{} build/asan/native/compress/compress_damaged_units_test --gtest_filter='*/{}'

cut-decodes: CUTS = 1000
cut-decodes: $(VENV)/.tools ## CUTS (1000) gets a transport that end in the midst of decoding, under TSan: nothing is written later
	cmake --preset tsan
	cmake --build --preset tsan --target integration_cut_decodes_test
	HALFSTEP_CUT_DECODES=$(CUTS) HALFSTEP_SEED=$(SEED) TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
	  $$(setarch -R true 2>/dev/null && echo setarch -R) \
	  $$(find build/tsan -name integration_cut_decodes_test -type f)

.PHONY: hostile torture-client
hostile: MINUTES = 5
hostile: build ## MINUTES (5) of hostile clients from SEED (1), with good ones beside them
	$(PYTHON) -m tests.torture.hostile --minutes $(MINUTES) --seed $(SEED)

torture-client: build ## MINUTES (10) of client processes that close, cancel, fork, signals, exit and stops enter; MOUNT=1: through a mount
	$(PYTHON) -m tests.torture.client --minutes $(MINUTES) --seed $(SEED) $(if $(MOUNT),--mount)

.PHONY: tsan-hostile tsan-torture-client
tsan-hostile: MINUTES = 5
# A turn of the daemon takes about ten times as long there, and 20 ms of a match are as much as 200.
tsan-hostile: $(VENV)/.tools ## the same under ThreadSanitizer
	SANITIZE_RUN="-m tests.torture.hostile --minutes $(MINUTES) --seed $(SEED) --match-ms 200" scripts/sanitize.sh tsan

tsan-torture-client: $(VENV)/.tools ## the same under ThreadSanitizer
	SANITIZE_RUN="-m tests.torture.client --minutes $(MINUTES) --seed $(SEED)" scripts/sanitize.sh tsan

.PHONY: lab
lab: SET = guest
lab: native ## SET (guest, host, long) of scenarios on devices that this machine has not, in a guest; skips say why
	@$(PYTHON) -m tests.lab --set $(SET) --targets | xargs -r cmake --build --preset $(PRESET) --target
	@$(PYTHON) -m tests.lab --set $(SET) || { code=$$?; [ $$code -eq 77 ] || exit $$code; }

VHOST_USER_TESTS ?= $(addprefix tests/integration/test_, client_data.py client_values.py client_queues.py life.py parts.py \
  prefetch.py wire_client.py serve_vhost_user.py drives.py serve_spdk.py)
.PHONY: vhost-user
vhost-user: build ## integration tests with their stores on qemu-storage-daemon's devices (VHOST_USER_TESTS), 20 kills of it
	HALFSTEP_TEST_STORE=vhost-user $(PYTHON) -m pytest $(VHOST_USER_TESTS) $(PYTEST_ARGS)

.PHONY: connectors connectors-short
connectors: build ## the real engines over a daemon; sets them up first: 8.5 GB under build/, up to ten minutes
	@scripts/setup.sh vllm lmcache sglang
	$(PYTHON) -m pytest -n $(PYTEST_JOBS) --dist loadfile --max-worker-restart 0 tests/connectors $(PYTEST_ARGS)

connectors-short: build ## vLLM's tier and LMCache's driver over a daemon, as CI runs them: 5.5 GB under build/, some minutes
	@scripts/setup.sh vllm lmcache
	$(PYTHON) -m pytest -m short tests/connectors $(PYTEST_ARGS)

.PHONY: sim mutants
sim: $(VENV)/.tools ## SEEDS (100000) from SEED_START (0): the store over a faulty device, on all cores
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET) --target halfstep_sim
	build/$(PRESET)/tests/sim/halfstep_sim --jobs $(JOBS) --seeds $(SEEDS) --start $(SEED_START)

mutants: $(VENV)/.tools ## every mutant of the store has to be caught by the simulator within 1,000 seeds
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET) --target halfstep_sim_mutants
	build/$(PRESET)/tests/sim/halfstep_sim_mutants --mutant all --jobs $(JOBS) --seeds 1000

.PHONY: wheel docs
wheel: $(VENV)/.tools ## a wheel for other machines in build/wheels; a manylinux tag where auditwheel and patchelf are
	rm -rf build/wheels && mkdir -p build/wheels/built
	$(PYTHON) -m pip --disable-pip-version-check -q wheel --no-build-isolation --no-deps --wheel-dir build/wheels/built \
	  --config-settings=build-dir=build/wheel .
	@if command -v auditwheel >/dev/null && command -v patchelf >/dev/null; then \
	  auditwheel repair --wheel-dir build/wheels build/wheels/built/*.whl; \
	else \
	  cp build/wheels/built/*.whl build/wheels/; \
	  echo "auditwheel or patchelf is missing: the wheel fits machines with a C library as new as this one's"; \
	fi
	@ls build/wheels/*.whl

docs: $(VENV)/.tools ## the documents as a site in build/site, strict about links
	$(PYTHON) -m pip --disable-pip-version-check -qq install 'mkdocs-material>=9.6'
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet && echo "built: build/site/index.html"

.PHONY: format stubs clean
format: $(VENV)/.tools ## rewrite native and Python sources in the house format
	clang-format -i $(CXX_FILES)
	ruff check --fix-only
	ruff format

stubs: build ## write the stubs of the extension modules anew
	$(PYTHON) -m nanobind.stubgen -q -m halfstep._peer -o src/halfstep/_peer.pyi
	$(PYTHON) -m nanobind.stubgen -q -m halfstep._shard -o src/halfstep/_shard.pyi
	$(PYTHON) -m nanobind.stubgen -q -m halfstep._store -o src/halfstep/_store.pyi

clean: ## remove everything that was built or installed here
	rm -rf build dist $(VENV) .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.tools: pyproject.toml scripts/setup.sh scripts/requirements.py
	@scripts/setup.sh base
	@touch $@

$(VENV)/.models: $(VENV)/.tools
	@scripts/setup.sh models
	@touch $@

# pip builds in build/release, the folder of the preset, so ctest finds its tests there and nothing is compiled twice.
# Python sources are used in place: only a change of native sources or of pyproject.toml comes here.
# CI=1: scikit-build waits 20 s, not 5, for cmake to say its version, which takes longer on a busy machine.
$(VENV)/.built: $(VENV)/.tools $(NATIVE)
	@echo "native build: first time about four minutes on two cores, 60 MB under build/"
	CI=1 $(PYTHON) -m pip --disable-pip-version-check -qq install --no-build-isolation --no-deps --force-reinstall -e . \
	  --config-settings=build-dir=build/$(PRESET) --config-settings=cmake.args=--preset=$(PRESET) \
	  --config-settings=cmake.build-type=Release --config-settings=cmake.define.HALFSTEP_PYTHON=ON \
	  --config-settings=cmake.define.HALFSTEP_WERROR=$(WERROR)
	@touch $@

# The two commands of the README are `make run` and `make test`; `make help` lists the rest.
#
# Settings, each as `make test NAME=value` or from the environment:
#   SALT_RELEASE          the Salt release to run against (3008.3, 3007.15 and 3006.28 are the pinned ones; default: 3008.3,
#                         and where CI is set also another one, chosen by the commit)
#   SALTCELLAR_BIN        a saltcellar binary for the Python tests (default: the debug build; the release build where CI is set)
#   SALTCELLAR_SALT_VENVS where the Python environments are kept (default: target/salt)
#   FUZZ_SECONDS          how long each fuzz target runs (those that read no door a third of it): 3 in `make test`, 60 where CI is
#                         set and in `make fuzz`
#   TEST_THREADS          Rust tests at once, with nextest (default: two per processor; they wait for disks and sockets)
#   INTEGRATION_SHARDS    integration tests at once, each with a master of its own (2)
#   CI                    set to anything: `make test` takes the time it needs (docs/decisions/test-time.md), and a test whose
#                         precondition is missing fails in place of being skipped
#   CARGO_TARGET_DIR      as everywhere in Rust

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test ci-packages test-rust test-python test-integration test-binary check deny matrix wheel single-file extension-docs bench bench-store bench-bus bench-extension bench-reactor bench-returners crash soak soak-reactor backlog-reactor isolation-reactor reactor-faults fuzz fuzz-sls test-fuzz-sls clean

PYTHON ?= python3
CARGO ?= cargo
FUZZ_SECONDS ?= $(if $(or $(CI),$(filter fuzz,$(MAKECMDGOALS))),60,3)
export FUZZ_SECONDS
TEST_THREADS ?= $(shell expr 2 '*' $$(nproc))
TARGET := $(or $(CARGO_TARGET_DIR),target)
LAB := $(PYTHON) tests/lab/salt_lab.py
# The other checks of a release build, LTO among them, are worth its minutes where nobody waits.
TEST_PROFILE := $(if $(CI),release,debug)
TEST_BIN := $(or $(SALTCELLAR_BIN),$(abspath $(TARGET))/$(TEST_PROFILE)/saltcellar)
PYTEST_ARGS ?=
ONLY ?=

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-18s %s\n", $$1, $$2}'

run: ## the demo: saltcellar beside a real Salt master with two minions (ONLY=daemon: the daemon alone)
	@exec $(PYTHON) tests/lab/demo.py $(if $(ONLY),--only $(ONLY)) $(if $(ONCE),--once)

test: ci-packages test-rust test-fuzz-sls test-python test-integration ## all tests: Rust, Python, and a real Salt master

# Programs, and the user salt, that some tests need. Elsewhere such a test is skipped; where CI is set it fails, so they are installed
# there (root, Debian).
ci-packages:
	@if [ -n "$(CI)" ] && ! { command -v systemd-analyze && command -v mkfs.ext4 && command -v mount; } >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd e2fsprogs mount; fi
	@if [ -n "$(CI)" ] && ! id salt >/dev/null 2>&1; then useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin salt; fi

test-rust: ## the tests of the crate
	@echo "== Rust tests"
	@if $(CARGO) nextest --version >/dev/null 2>&1; then $(CARGO) nextest run --test-threads $(TEST_THREADS); else $(CARGO) test; fi

test-fuzz-sls: ## a short `fuzz-sls`
	@echo "== templates, natively and by Salt"
	@$(MAKE) --no-print-directory fuzz-sls COUNT=3000

# The debug build is the one that test-rust has just made; nothing is compiled twice (`build` would be without what tests need).
test-binary:
	@case "$(TEST_BIN)" in \
	  "$(abspath $(TARGET))/debug/saltcellar") $(CARGO) test --no-run --quiet;; \
	  "$(abspath $(TARGET))/release/saltcellar") $(CARGO) build --release --quiet;; \
	esac

test-python: test-binary ## the tests of the extension that need no master
	@releases=$$($(LAB) releases); for r in $$releases; do \
	  echo "== Python tests (salt $$r; again: make test-python SALT_RELEASE=$$r SALTCELLAR_BIN=$(TEST_BIN))"; \
	  SALTCELLAR_BIN="$(TEST_BIN)" $(LAB) in-venv --release $$r -- pytest -q salt/tests/unit salt/tests/functional $(PYTEST_ARGS); \
	done

test-integration: test-binary ## the tests with a real master and two minions
	@releases=$$($(LAB) releases); for r in $$releases; do \
	  echo "== integration tests (salt $$r; again: make test-integration SALT_RELEASE=$$r SALTCELLAR_BIN=$(TEST_BIN))"; \
	  SALTCELLAR_BIN="$(TEST_BIN)" $(LAB) in-venv --release $$r -- python tests/lab/shards.py $(PYTEST_ARGS); \
	done

check: ## what a change must pass: fmt, clippy, cargo-deny, tests, docs
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	@$(MAKE) --no-print-directory deny test
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps

DENY_VERSION ?= 0.20.2
TOOLS := $(abspath $(TARGET))/tools
deny: ## licences, sources and bans of all dependencies, and advisories if their database can be fetched
	@PATH="$(TOOLS)/bin:$$PATH"; \
	if ! $(CARGO) deny --version >/dev/null 2>&1; then \
	  echo "cargo-deny is not installed: building it into $(TOOLS) (once, a few minutes)"; \
	  $(CARGO) install --quiet --locked cargo-deny --version $(DENY_VERSION) --root "$(TOOLS)" --target-dir "$(TOOLS)/build" \
	    || { echo "cargo-deny cannot be built; install it: cargo install --locked cargo-deny"; exit 1; }; \
	  rm -rf "$(TOOLS)/build"; \
	fi; \
	$(CARGO) deny check bans licenses sources; \
	if $(CARGO) deny fetch db >"$(TOOLS)-fetch.log" 2>&1; then $(CARGO) deny check --disable-fetch advisories; \
	else echo "advisories: SKIPPED, their database cannot be fetched ($(TOOLS)-fetch.log)"; fi

bench: ## ingest, query, returner and doors measured, beside the physical yardstick (BENCH_ARGS: more flags for ingest)
	@$(CARGO) build --release
	@$(TARGET)/release/saltcellar bench ingest $(BENCH_ARGS)
	@$(TARGET)/release/saltcellar bench query
	@$(TARGET)/release/saltcellar bench returner
	@$(TARGET)/release/saltcellar bench doors

crash: ## TRIALS random trials of the store and of the spill on a simulated disk, CRASHES kill -9 under load, damage to every kind of file (TRIAL_SEED=n, CRASH_SEED=n repeat one)
	@TRIALS=$${TRIALS:-10000} $(CARGO) test --release --lib trials
	@CRASHES=$${CRASHES:-200} $(CARGO) test --release --test crash -- --nocapture --test-threads=1

bench-bus: ## what archiving its events costs a real master: Salt's own EventReturn and saltcellar on one bus
	@$(CARGO) build --release
	@SALTCELLAR_BIN="$(abspath $(TARGET))/release/saltcellar" $(LAB) in-venv -- python tests/lab/bus_cost.py

bench-reactor: ## the reactor's pipeline: Salt's own and ours on the same rules and files, in one run
	$(CARGO) build --release
	@SALTCELLAR_BIN="$(abspath $(TARGET))/release/saltcellar" $(LAB) in-venv -- python tests/lab/bench_reactor.py
	@$(TARGET)/release/saltcellar bench reactor --wire $(BENCH_ARGS)

bench-extension: ## the Salt extension measured: event_return in batches, returner with 1 and 8 workers
	@$(CARGO) build --release
	@for what in event_return returner; do SALTCELLAR_BIN="$${SALTCELLAR_BIN:-$(abspath $(TARGET))/release/saltcellar}" \
	  $(LAB) in-venv -- python salt/bench/extension.py $$what; done

SIZES ?= 10000,100000
RETURNERS_JSON ?= $(abspath $(TARGET))/bench-returners.json
bench-returners: ## job caches side by side: local_cache, salt_cache, pgjsonb, redis, saltcellar (SIZES=10000,100000,1000000; BENCH_ARGS)
	@if [ -z "$${SALTCELLAR_BIN:-}" ]; then $(CARGO) build --release; fi
	@test -d "$(TARGET)/bench-libs" || $(LAB) in-venv --no-extension -- python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --target "$(TARGET)/bench-libs" psycopg2-binary redis saltext.redis \
	  || echo "psycopg2-binary, redis and saltext.redis cannot be had: what needs them steps aside"
	@SALTCELLAR_BIN="$${SALTCELLAR_BIN:-$(abspath $(TARGET))/release/saltcellar}" PYTHONPATH="$(abspath $(TARGET))/bench-libs" \
	  $(LAB) in-venv --no-extension -- python salt/bench/returners.py --sizes $(SIZES) --json $(RETURNERS_JSON) $(BENCH_ARGS)

SOAK_ENTRIES ?= 100000000
soak: ## memory over a hundred million entries (SOAK_ENTRIES)
	@$(CARGO) build --release
	@$(TARGET)/release/saltcellar bench ingest --load small --no-yardstick --entries $(SOAK_ENTRIES) --output json $(BENCH_ARGS)

SOAK_EVENTS ?= 10000000
soak-reactor: ## the reactor's memory over ten million events (SOAK_EVENTS); fails if it grows
	@$(CARGO) build --release
	@$(TARGET)/release/saltcellar bench reactor --soak $(SOAK_EVENTS) $(BENCH_ARGS)

BACKLOG_EVENTS ?= 1000000
backlog-reactor: ## a million events while the master is down (BACKLOG_EVENTS): memory, order, nothing twice; fails above 200 MB
	@$(CARGO) build --release
	@$(TARGET)/release/saltcellar bench reactor --backlog $(BACKLOG_EVENTS) --check $(BENCH_ARGS)

isolation-reactor: ## how long a reaction waits beside a rule that is throttled, slow or failing; fails above 50 ms
	@$(CARGO) build --release
	@$(TARGET)/release/saltcellar bench reactor --isolation --seconds 10 --check $(BENCH_ARGS)

FAULTS ?= 50
REACTIONS ?= 10000
reactor-faults: test-binary ## REACTIONS reactions of a real master while it and the daemon are killed, stopped and frozen FAULTS times (SEED=n repeats a run)
	@FAULTS=$(FAULTS) REACTIONS=$(REACTIONS) SEED=$${SEED:-$$RANDOM} SALTCELLAR_BIN="$(TEST_BIN)" \
	  $(LAB) in-venv -- pytest -q -s salt/tests/integration/test_reactor_faults.py $(PYTEST_ARGS)

matrix: ## the Python and integration tests on every pinned Salt release
	@for r in 3008.3 3007.15 3006.28; do $(MAKE) --no-print-directory test-python test-integration SALT_RELEASE=$$r; done

wheel: ## the Salt extension as a wheel and a source distribution, in salt/dist
	@$(LAB) in-venv --no-extension -- python salt/tools/package.py

single-file: ## the returner as one file for salt://_returners, in salt/dist/_returners
	@$(PYTHON) salt/tools/single_file.py

extension-docs: ## the extension's pages as HTML, in salt/dist/docs (fetches Sphinx the first time)
	@$(LAB) in-venv --no-extension -- python -c 'import sphinx' 2>/dev/null || test -d "$(TARGET)/sphinx" || \
	  $(LAB) in-venv --no-extension -- python -m pip install --quiet --disable-pip-version-check --target "$(TARGET)/sphinx" 'sphinx>=8,<9'
	@PYTHONPATH="$(abspath $(TARGET))/sphinx" $(LAB) in-venv --no-extension -- python -m sphinx -q -W -b html salt/docs salt/dist/docs
	@echo salt/dist/docs/index.html

bench-store: ## the store alone, in this process, against the yardstick
	$(CARGO) bench --bench ingest

FUZZ_TARGETS ?= frame salt_event call signed_batch block log pages zmtp spill redact sls_yaml sls_jinja fnmatch
fuzz: ## the fuzz targets with coverage, each for FUZZ_SECONDS (60); needs cargo-fuzz (FUZZ_TARGETS: only these)
	@$(CARGO) test --test it fuzz_short::write_corpus -- --exact --ignored
	@for t in $(FUZZ_TARGETS); do RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --sanitizer none $$t fuzz/corpus/$$t fuzz/regressions/$$t -- \
	  -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096; done

SEED ?= 1
COUNT ?= 20000
SLS_FUZZ := $(abspath $(TARGET))/sls-fuzz
fuzz-sls: ## COUNT random templates, rendered natively and by Salt: what is native is the same (SEED=n repeats one; 2 and 3 modulo 4 trim blocks)
	@mkdir -p "$(SLS_FUZZ)"
	@$(PYTHON) tests/lab/sls_fuzz.py generate $(SEED) $(COUNT) tests/data/jinja-3008.3.jsonl tests/data/reactor-cases \
	  tests/data/reactor-cases-own > "$(SLS_FUZZ)/templates.jsonl"
	@SLS_FUZZ="$(SLS_FUZZ)" $(CARGO) test -q --test it sls_jinja::write_what_is_native -- --exact --ignored --nocapture
	@$(LAB) in-venv --no-extension -- python tests/lab/sls_fuzz.py compare "$(SLS_FUZZ)/native.jsonl"

clean: ## remove everything built, the Python environments too
	$(CARGO) clean
	rm -rf target/salt salt/build salt/dist

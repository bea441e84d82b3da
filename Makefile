# Every task of this project. `make` alone lists them; `make run` and `make test` are all that a newcomer needs.
# Nothing has to be installed by hand but Python 3.11 (or newer: make PYTHON=python3.12 ...) with its venv module.

MAKEFLAGS += --no-print-directory

PYTHON ?= python3.11
INPUT ?=
WORKERS ?= 3
SEEDS ?= 2000
MINUTES ?= 10
MESSAGES ?= 1000000
VERSIONS ?= 4.0.7 4.2.4 5.0.0-M1
ON_STORES := tests/conformance/test_objects.py $(addprefix tests/integration/,servers/test_store_faults.py kills commands/test_doctor.py servers/test_upkeep.py)
SEED ?=
PARTS ?=
RUN ?=
KEY ?=
ADVISORIES ?=
BASE ?=
WITHOUT ?=
FRESH ?=
FIRST ?= 0

# Workers of tests, and the programs that they start, compile each module once: images of Python often forbid to keep it.
export PYTHONDONTWRITEBYTECODE =

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input
# protoc finds its plugin on the PATH
PROTOS := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/protos.py
DEPENDENCIES := $(VENV)/.dependencies-
# The environment for work on the project holds all that the other one does.
INSTALLED := $(if $(wildcard $(DEPENDENCIES)dev),$(DEPENDENCIES)dev,$(DEPENDENCIES)standalone)
UV_COMPILE := $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run standalone test test-quick prove record check fmt bench release invariants protos docs site manifests kubernetes lock clean clean-data fuzz simulate soak squeeze test-page dashboard-picture table-hour audit notebook broker-driver test-broker test-driver test-brokers test-cluster stores test-stores readers lint-api

help: ## List what can be made
	@awk 'BEGIN {FS = ":.*## "; print "make TARGET\n"} /^[a-z-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nPYTHON=%s  INPUT=path, - or empty (make run)  WORKERS=%s (make test)  SEEDS=%s (make simulate)  MINUTES=%s (make soak, fuzz)  MESSAGES=%s (make test-broker, test-restore)\n' '$(PYTHON)' '$(WORKERS)' '$(SEEDS)' '$(MINUTES)' '$(MESSAGES)'

setup: $(DEPENDENCIES)dev ## Prepare .venv for work on the project

run: $(INSTALLED) ## Stream a data set through the whole system to S3 and back (INPUT=file or - for yours)
	@$(BIN)/offloaderd standalone --walkthrough $(if $(INPUT),--input "$(INPUT)")

standalone: $(INSTALLED) ## Start everything on this machine and leave it running
	@$(BIN)/offloaderd standalone

test: $(DEPENDENCIES)dev ## Run all tests of parts, and witnesses on real servers of each kind (fetches 390 MB of jars once)
	$(BIN)/python -m pytest -n $(WORKERS) --tier test --max-worker-restart 1

test-quick: $(DEPENDENCIES)dev ## Run those tests that need no bookies, no Pulsar and no Spark, without the simulation
	$(BIN)/python -m pytest -n $(WORKERS) --tier quick

prove: $(DEPENDENCIES)dev ## Prove everything, and report it; again after an interruption: the rest (PARTS="guards seeds", FRESH=1)
	$(BIN)/python -m tools.prove $(PARTS) --workers $(WORKERS) $(if $(FRESH),--fresh)

record: $(DEPENDENCIES)dev ## Run a long check and note in docs/proof/runs.md when (RUN=soak, with MINUTES=n and the like behind it)
	$(BIN)/python -m tools.runs $(RUN) $(filter-out RUN=%,$(MAKEOVERRIDES))
	@$(BIN)/python tools/docs.py

check: $(DEPENDENCIES)dev ## The gate: lint, format, types, layers, generated files, tidy tests; known flaws of dependencies, or NOT AUDITED
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(PROTOS) --check
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/compatible.py
	$(BIN)/python -m pytest -q tests/test_tidy.py
	$(BIN)/python -m tools.audit --lenient --outcome $(VENV)/.audit

audit: $(DEPENDENCIES)dev ## Compare the locked requirements with known flaws; an error where the service is out of reach
	$(BIN)/python -m tools.audit

release: $(DEPENDENCIES)dev ## Make everything that is published, signed, without a network (KEY=file ADVISORIES=folder BASE=python@sha256:...)
	$(BIN)/python -m tools.audit --database "$(ADVISORIES)"
	$(BIN)/python -m tools.release --key "$(KEY)" $(if $(BASE),--base "$(BASE)") $(addprefix --without ,$(WITHOUT))

fmt: $(DEPENDENCIES)dev ## Format the code and repair what lint can
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(DEPENDENCIES)dev ## Measure the main ways beside their limits, less than 20 minutes (quick: python -m bench --quick, more: --all)
	$(BIN)/python -m bench

simulate: $(DEPENDENCIES)dev ## Simulate daemons and all that can befall them (SEEDS=n FIRST=n; docs/contributing.md)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST)

soak: $(DEPENDENCIES)dev ## Kill, pause and cut off daemons on real servers for some time (MINUTES=n SEED=n)
	$(BIN)/python -m tests.real.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

squeeze: $(DEPENDENCIES)dev ## Give daemons a tenth of the line they need, under a memory limit (MINUTES=n each)
	$(BIN)/python -m tests.real.squeeze --minutes $(MINUTES)

test-page: $(DEPENDENCIES)dev ## Look at the status page with a headless Chromium (BROWSER=path SCREENSHOTS=directory)
	$(if $(BROWSER),BROWSER=$(BROWSER)) $(if $(SCREENSHOTS),SCREENSHOTS=$(abspath $(SCREENSHOTS))) $(BIN)/python -m pytest -n 0 tests/real/page.py

table-hour: $(DEPENDENCIES)dev ## Watch a topic of a real Pulsar become a table, and draw it: MINUTES=60 into docs/, a shorter run into build/table-hour
	$(BIN)/python -m tests.real.table_hour --minutes $(MINUTES)

dashboard-picture: $(DEPENDENCIES)dev ## Draw what the dashboard shows of an outage of S3, under a real Prometheus (ten minutes)
	$(BIN)/python -m tests.real.dashboard

broker-driver: ## Build the archive, and the jar for compacted topics, of a stock Pulsar broker with offloaderd (Maven, JDK 17)
	@command -v mvn >/dev/null && command -v javac >/dev/null || \
	  { echo "building the broker's driver needs Maven and a JDK (17 or newer): Debian, Ubuntu: apt install maven openjdk-17-jdk" >&2; exit 1; }
	mvn -q -B -ntp -f deploy/pulsar-offloader package
	@ls deploy/pulsar-offloader/nar/target/*.nar deploy/pulsar-offloader/compaction/target/*.jar

test-broker: $(DEPENDENCIES)dev ## Put two stock brokers with the driver to the test, and measure it against Pulsar's own (MESSAGES=n)
	$(BIN)/python -m tests.real.broker_run --messages $(MESSAGES)

test-restore: $(DEPENDENCIES)dev ## Lose everything but the bucket, and bring it up in empty clusters (MESSAGES=n VERSIONS="...", 4 GB of memory)
	$(BIN)/python -m tests.real.restore_run --messages $(MESSAGES) --versions $(VERSIONS)

test-driver: $(DEPENDENCIES)dev ## Test the driver in a real stock broker (needs Maven and a JDK)
	$(BIN)/python -m pytest -n 0 tests/integration/broker/test_stock_broker.py tests/integration/broker/test_compacted.py

test-brokers: $(DEPENDENCIES)dev ## Test driver and daemon on each version of Pulsar that they are for, in brokers of theirs (VERSIONS="..."; 240 MB of jars each, once)
	@for version in $(VERSIONS); do \
	  echo "Pulsar $$version"; \
	  mvn -q -B -ntp -f deploy/pulsar-offloader -pl driver test -Dpulsar.version=$$version && \
	  PULSAR_VERSION=$$version $(BIN)/python -m pytest -n 0 tests/integration/broker/test_stock_broker.py \
	    tests/integration/broker/test_compacted.py tests/integration/pulsar/test_transactions.py || exit 1; \
	done

PROTO_NAMES = $(patsubst protos/%,%,$(wildcard protos/offloaderd/v1/*.proto))

build/readers/go: $(DEPENDENCIES)dev $(wildcard protos/offloaderd/v1/*.proto) $(wildcard examples/readers/go/*)
	@command -v go >/dev/null || { echo "the reader in Go needs Go (1.25 or newer, https://go.dev/dl)" >&2; exit 1; }
	GOBIN=$(abspath build/readers) go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11
	GOBIN=$(abspath build/readers) go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0
	PATH="$(abspath build/readers):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos \
	  $(foreach kind,go go-grpc,--$(kind)_out=examples/readers/go --$(kind)_opt=module=offloaderd/reader \
	    $(foreach name,$(PROTO_NAMES),--$(kind)_opt=M$(name)=offloaderd/reader/offloaderdv1)) $(PROTO_NAMES)
	cd examples/readers/go && go build -o $(abspath $@) .

build/readers/java.jar: $(wildcard protos/offloaderd/v1/*.proto) $(shell find deploy/pulsar-offloader/reader -name "*.java" -o -name pom.xml)
	@command -v mvn >/dev/null && command -v javac >/dev/null || \
	  { echo "the reader in Java needs Maven and a JDK (17 or newer)" >&2; exit 1; }
	mvn -q -B -ntp -f deploy/pulsar-offloader -P reader -pl reader package
	mkdir -p build/readers && cp deploy/pulsar-offloader/reader/target/reader.jar $@

build/buf/node_modules/.bin/buf:
	@command -v npm >/dev/null || { echo "buf is installed by npm: it needs Node (https://nodejs.org)" >&2; exit 1; }
	npm install --silent --no-audit --no-fund --prefix build/buf @bufbuild/buf@1.59.0

lint-api: build/buf/node_modules/.bin/buf ## Lint the API by buf, and compare it with the last release (needs Node)
	$< lint
	$< breaking --against tests/golden/release.binpb

readers: build/readers/go build/readers/java.jar ## Build small readers in Go and Java from protos/ (needs Go, Maven and a JDK)

test-cluster: $(DEPENDENCIES)dev ## Submit jobs with a packed environment to a standalone cluster of Spark, on real bookies
	WITH_CLUSTER=1 $(BIN)/python -m pytest -n 0 -o faulthandler_timeout=1800 tests/integration/spark/test_spark_cluster.py

build/stores/versitygw: MODULE = github.com/versity/versitygw/cmd/versitygw@v1.8.0
build/stores/minio: MODULE = github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
build/stores/fake-gcs-server: MODULE = github.com/fsouza/fake-gcs-server@v1.56.1
build/stores/%:
	@command -v go >/dev/null || { echo "building servers for tests needs Go (1.25 or newer, https://go.dev/dl)" >&2; exit 1; }
	GOBIN=$(abspath build/stores) go install $(MODULE)

stores: build/stores/versitygw build/stores/minio build/stores/fake-gcs-server ## Build two more S3 servers and an emulator of Google's for tests and benchmarks (needs Go)

test-stores: $(DEPENDENCIES)dev stores ## Run what depends on a store on versitygw, MinIO and Google's emulator as well, and encryption by a KMS (needs Go)
	S3_SERVER=versitygw $(BIN)/python -m pytest -n $(WORKERS) $(ON_STORES)
	S3_SERVER=minio $(BIN)/python -m pytest -n $(WORKERS) $(ON_STORES)
	$(BIN)/python -m pytest -n 0 tests/real/on_minio.py
	$(BIN)/python -m pytest -n $(WORKERS) tests/conformance/test_objects.py $(addprefix tests/integration/,kills servers commands/test_gcs.py bookies/test_pulsar_offloader_topic.py) -k 'gcs or google'

fuzz: $(DEPENDENCIES)fuzz ## Feed foreign bytes to every decoder that reads any, guided by coverage (MINUTES=n in all)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

invariants: $(DEPENDENCIES)dev ## Take guards of promises away and see their tests fail: those that changed, or ALL=1 (WORDS="P4 ...")
	$(BIN)/python tools/invariants.py --workers $(WORKERS) $(if $(ALL),--all) $(WORDS)

protos: $(DEPENDENCIES)dev ## Compile protos/ into the package
	$(PROTOS)

docs: $(DEPENDENCIES)dev ## Write the pages that are generated from the code
	$(BIN)/python tools/docs.py

site: $(DEPENDENCIES)site ## Build the pages as a site with search, in build/site (a directory a version)
	$(BIN)/python -m tools.site

build/kubernetes/helm:
	@command -v go >/dev/null || { echo "building Helm needs Go (1.26 or newer, https://go.dev/dl)" >&2; exit 1; }
	GOBIN=$(abspath build/kubernetes) go install helm.sh/helm/v3/cmd/helm@v3.22.0

CONTROL_PLANE := $(addprefix build/kubernetes/,etcd kube-apiserver kubectl)
build/kubernetes/etcd: PROGRAM = go.etcd.io/etcd/server/v3
build/kubernetes/kube-apiserver: PROGRAM = k8s.io/kubernetes/cmd/kube-apiserver
build/kubernetes/kubectl: PROGRAM = k8s.io/kubernetes/cmd/kubectl
$(CONTROL_PLANE): $(wildcard tests/kubernetes/control-plane/*)
	@command -v go >/dev/null || { echo "building a control plane needs Go (1.26 or newer, https://go.dev/dl)" >&2; exit 1; }
	cd tests/kubernetes/control-plane && version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && \
	  go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" -o $(abspath $@) $(PROGRAM)

KINDS := build/kubernetes/kinds/cert-manager.io_certificates.yaml
$(KINDS): $(wildcard tests/kubernetes/kinds/*)
	@command -v go >/dev/null || { echo "making definitions of kinds needs Go (1.26 or newer, https://go.dev/dl)" >&2; exit 1; }
	cd tests/kubernetes/kinds && \
	  go tool controller-gen crd $$(go list -f '{{range .Imports}}paths={{.}} {{end}}' .) output:dir=$(abspath $(@D))

kubernetes: build/kubernetes/helm $(KINDS) $(CONTROL_PLANE) ## Build Helm, and etcd and an API server of Kubernetes for its tests (needs Go)

manifests: $(DEPENDENCIES)dev build/kubernetes/helm ## Render deploy/kubernetes from the Helm chart (needs Go)
	$(BIN)/python -m tools.chart

notebook: $(DEPENDENCIES)dev ## Run docs/notebook.py on real servers and write its section of docs/spark.md
	NOTEBOOK=write $(BIN)/python -m pytest -n 0 -q tests/integration/spark/test_notebook.py

lock: $(DEPENDENCIES)dev ## Resolve the requirements again (UPGRADE=--upgrade for newer versions)
	$(UV_COMPILE) $(UPGRADE) --extra dev -o requirements/dev.txt pyproject.toml requirements/build.in
	$(UV_COMPILE) -c requirements/dev.txt --extra standalone --extra sasl --extra azure --extra gcs -o requirements/standalone.txt pyproject.toml requirements/build.in
	$(UV_COMPILE) -c requirements/dev.txt --extra spark --extra sasl --extra azure --extra gcs -o requirements/spark.txt pyproject.toml
	$(UV_COMPILE) -c requirements/dev.txt --extra sasl --extra azure --extra gcs -o requirements/runtime.txt pyproject.toml
	$(UV_COMPILE) -c requirements/dev.txt -o requirements/client.txt pyproject.toml
	$(UV_COMPILE) -c requirements/dev.txt --extra fuzz -o requirements/fuzz.txt pyproject.toml requirements/build.in
	$(UV_COMPILE) -c requirements/dev.txt --extra site -o requirements/site.txt pyproject.toml
	$(UV_COMPILE) -c requirements/dev.txt -o requirements/build.txt requirements/build.in
	$(UV_COMPILE) -c requirements/dev.txt -o requirements/pack.txt requirements/pack.in

clean: ## Remove .venv and everything that tools have written; data/ stays
	rm -rf $(VENV) build dist native/build native/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.*
	find offloaderd tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

clean-data: ## Remove what `make run` and `make standalone` have stored
	rm -rf data

# Four steps. The first three are locked and checked by hash: what builds packages, the packages (one of them comes as
# source and is built with the former), and the project itself; then its compiled loops, where there is a compiler.
$(DEPENDENCIES)%: requirements/build.txt requirements/%.txt pyproject.toml native/pyproject.toml native/offloaderd_native.c | $(VENV)/.created
	@echo "Installing requirements/$*.txt into $(VENV) (about a gigabyte the first time: it holds Spark, Java and S3)"
	@$(PIP) install --require-hashes -r requirements/build.txt
	@$(PIP) install --require-hashes --no-build-isolation -r requirements/$*.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(PIP) install --no-deps --no-build-isolation --force-reinstall ./native >$(VENV)/native.log 2>&1 || { \
	  $(PIP) uninstall --yes offloaderd-native >>$(VENV)/native.log 2>&1; \
	  echo "Loops over entries were not compiled ($(VENV)/native.log): they run in Python, which is slower. To have them compiled, install a"; \
	  echo "C compiler and Python's headers (Debian, Ubuntu: apt install gcc libc6-dev python3-dev), rm $@, and make again."; }
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "offloaderd needs Python 3.11 or newer, and '$(PYTHON)' is not one: install it, or name yours: make PYTHON=python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "'$(PYTHON)' lacks its venv module: install it (Debian, Ubuntu: apt install python3.11-venv)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) # over one that exists or was left half made: nothing in it is deleted
	@touch $@

# Make targets for developers and CI. `make help` lists them.

GO       ?= go
PG       ?= 15
DIR      ?=
ONLY     ?=
MODE     ?=
ARGS     ?=
FUZZTIME ?= 10m
COUNT    ?= 5
SEED     ?= 0
ROUNDS   ?= 100
LAYOUT   ?= both
BENCH    ?= .
RUNS     ?= 3
SCALE    ?= 1

VERSIONED = 001*,028*,04*,060*,11*,120*,130*,16*,17*,191*,192*,22*,231*,246*,248*

# Packages with their own, longer targets.
SUITES = /integration(/|$$)
UNIT   = $$($(GO) list ./... | grep -vE '$(SUITES)')

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/walferry, static
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w' -o bin/walferry ./cmd/walferry

.PHONY: demo
demo: ## a publisher and a subscriber on this machine, replicated before your eyes; ARGS= are passed on
	$(GO) run ./cmd/walferry demo $(ARGS)

.PHONY: test
test: unit race integration ## everything CI runs but lint

.PHONY: unit
unit: ## tests of the packages; PGTEST_VERSION= chooses the server
	$(GO) test $(UNIT)

.PHONY: race
race: ## the same under the race detector, short
	CGO_ENABLED=1 $(GO) test -race -short $(UNIT)

# The suites run all scenarios on 15. On the other versions that are here the test
# run takes those in which the versions differ; make scenarios PG=17 runs all.
.PHONY: integration
integration: build ## black-box suites: scenarios on 15, 17 and 18, containers, compose
	$(GO) test -timeout 30m -p 1 ./integration/...
	@for pg in 17 18; do \
		if [ $$pg = 18 ] && [ ! -d /usr/lib/postgresql/18/bin ] && [ ! -d "$${WALFERRY_CACHE:-/var/cache/walferry}/pgtest/18" ]; then \
			echo "no PostgreSQL 18 here (make servers): its scenarios are skipped"; continue; \
		fi; \
		$(MAKE) --no-print-directory scenarios PG=$$pg ONLY='$(VERSIONED)' || exit 1; \
	done

.PHONY: scenarios
scenarios: ## scenarios on PG=15; DIR= folder, ONLY= name pattern, MODE= apply mode
	$(GO) run ./integration/scenarios/cmd/scenarios -pg '$(PG)' \
		$(if $(DIR),-dir '$(DIR)') $(if $(ONLY),-only '$(ONLY)') $(if $(MODE),-mode '$(MODE)')

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME=10m
	@set -e; for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz' || true); do \
			echo "== $$pkg $$f"; \
			$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done

.PHONY: soak
soak: ## break every part at random under load: SEED= replays, ROUNDS=100 faults, LAYOUT=both
	$(GO) test ./integration/soak -run Soak -v -timeout 6h -seed $(SEED) -rounds $(ROUNDS) -layout $(LAYOUT)

.PHONY: sizes
sizes: ## the full sizes: 20 million rows in one transaction, a value of 300 MB ...; 30 GB of disk; ONLY= name pattern
	$(GO) test ./integration/sizes -run 'TestSize$(if $(ONLY),.*$(ONLY))' -v -count=1 -timeout 6h -sizes.full

.PHONY: bench
bench: ## against PostgreSQL's own replication: WORKLOADS=w1,w3 RUNS=3 SCALE=1; 13 to 45 minutes
	$(GO) run ./integration/bench/cmd/bench $(if $(WORKLOADS),-workloads '$(WORKLOADS)') -runs $(RUNS) -scale $(SCALE)

.PHONY: microbench
microbench: ## Go benchmarks COUNT=5 times, as benchstat reads them; BENCH= chooses
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) $(UNIT)

.PHONY: lint
lint: bin/staticcheck bin/gofumpt ## go vet, staticcheck, gofumpt, import directions
	$(GO) vet ./...
	bin/staticcheck ./...
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs bin/gofumpt -l); \
		if [ -n "$$unformatted" ]; then echo "not gofumpt-formatted:"; echo "$$unformatted"; exit 1; fi
	$(GO) test -count=1 ./internal/archtest

bin/staticcheck bin/gofumpt: tools/go.mod tools/go.sum
	$(GO) build -C tools -o ../bin/ tool
	@touch bin/staticcheck bin/gofumpt

.PHONY: servers
servers: ## PostgreSQL 17 and 18 for the tests where the system has only another one (needs root)
	integration/images/binaries.sh 17 18

.PHONY: images
images: ## the container images of the tests, made without a registry (needs root)
	integration/images/build.sh postgres:17 nats:2-alpine walferry:local

.PHONY: clean
clean: ## what the other targets made in this folder
	rm -rf bin

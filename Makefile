# Everything that people and CI run. Overridable: PKG=./router/ RUN=TestX for
# test, race, test-slow and flaky, COUNT=, SEED= and BUDGET=60s for flaky, SEED=
# and SEEDS= for sim, FUZZTIME= for fuzz, ARGS= for demo.

BIN      := bin
GO       ?= go
# Packages whose tests wait longest come first, so that they wait while the others
# are still compiled.
PKG      ?= ./testbench/world ./router/ownership ./replicate ./testbench/docs ./...
RUN      ?=
FUZZTIME ?= 20s
SEEDS    ?= 200
SOAK     ?= 10000
WORLDS   ?= logs ownership
# Given on the command line or in the environment, they go to flaky.
FLAKY    := $(if $(COUNT),-count $(COUNT)) $(if $(SEED),-seed $(SEED)) $(if $(BUDGET),-budget $(BUDGET)) $(if $(RUN),-run '$(RUN)') \
            $(if $(LOGS),-logs $(LOGS)) $(if $(PROGRESS),-progress $(PROGRESS))
TOOL     := $(GO) tool -modfile=tools/go.mod
# The race detector needs cgo; the programs do not, and run anywhere without it.
BUILD    := CGO_ENABLED=0 $(GO) build -trimpath
# Most of a fresh run is compiling: tests, and the programs that they build, are built
# without debug information, which only a debugger reads, and tests without vet, which
# lint and .ci/run run. Programs that tests build are built with the same flags, so that
# everything is compiled once with the race detector and once without.
# The compiler collects its garbage less often, which takes a sixth of its time.
LEAN     := GOFLAGS="$(strip $(GOFLAGS) -trimpath -gcflags=all=-dwarf=false -ldflags=-w '-toolexec=env GOGC=400')"
# Many tests wait, so twice as many packages as there are processors run at a time. A
# test program with the race detector rests for a second before it ends, if it is not told.
BUILDTEST := -race -vet=off
RUNTEST  := -vet=off -p $(shell echo $$((2 * $$(nproc 2>/dev/null || echo 2)))) -timeout 12m $(if $(RUN),-run '$(RUN)')
RACE     := $(LEAN) GORACE="atexit_sleep_ms=50 $(GORACE)" CGO_ENABLED=1 $(GO) test -race $(RUNTEST)
# The simulators play their histories in one goroutine, where there is nothing to race
# with; the race detector makes that five times slower.
PLAIN    := $(LEAN) CGO_ENABLED=0 $(GO) test $(RUNTEST)
ONEGOROUTINE := ^github.com/geogate/geogate/testbench/sim(/|$$)
, := ,
# tests FLAGS runs the tests of PKG, both kinds side by side: while tests wait, the others
# are compiled. What the plain ones print comes last.
tests = status=0; all=$$($(GO) list $(PKG)) || exit 1; \
	  race=$$(echo "$$all" | grep -vE '$(ONEGOROUTINE)'); plain=$$(echo "$$all" | grep -E '$(ONEGOROUTINE)'); \
	  said=$$(mktemp); beside=; trap 'exit 130' INT TERM; trap '[ -z "$$beside" ] || kill $$beside 2>/dev/null; rm -f "$$said"' EXIT; \
	  [ -z "$$plain" ] || { $(PLAIN) $(1) $$plain >"$$said" 2>&1 & beside=$$!; }; \
	  [ -z "$$race" ] || $(RACE) $(1) $$race || status=1; \
	  [ -z "$$plain" ] || { wait $$beside || status=1; beside=; cat "$$said"; }; \
	  exit $$status

.DEFAULT_GOAL := help
.PHONY: help demo build test test-slow race kafka hostile flaky check fmt lint vuln fuzz sim soak bench bench-write bench-fold bench-start bench-idle bench-kills bench-years soak-real bench-table alerts accept gcc

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: build ## Run two regions and a witness, with data, in this terminal (ARGS="--fresh --ports auto")
	$(BIN)/geogate demo $(ARGS)

build: ## Build bin/geogate
	$(BUILD) -o $(BIN)/ ./cmd/geogate

test: gcc ## Run all tests that need no other service, with the race detector
	@$(call tests)

test-slow: gcc ## Run all tests and list the slowest ten and the slowest packages
	@($(call tests,-json)) | $(GO) run ./testbench/slow

race: gcc ## Run the tests of PKG again, without the cache
	$(RACE) -count=1 $(PKG)

# Tests that ask for Apache Kafka have Apache in their names, or fail: no list is kept.
# They are in packages whose tests import what starts it; the attacks have a target of
# their own. Two packages at a time have up to eight brokers of half a gigabyte.
APACHE := github.com/geogate/geogate/testbench/apache
kafka: ## Run on Apache Kafka the tests that ask for it (PKG=./replicate RUN=TestX narrows it)
	@all=$$($(GO) list -test -f '{{if .ForTest}}{{$$for := .ForTest}}{{range .Deps}}{{if eq . "$(APACHE)"}}{{$$for}}{{end}}{{end}}{{end}}' $(PKG)) || exit 1; \
	  all=$$(echo "$$all" | grep -vx '.*/testbench/hostile' | sort -u); [ -n "$$all" ] || { echo "no test of $(PKG) imports $(APACHE)"; exit 1; }; \
	  GEOGATE_TEST_KAFKA=1 $(LEAN) CGO_ENABLED=0 $(GO) test -vet=off -count=1 -p 2 -timeout 18m -run '$(or $(RUN),Apache)' $$all

hostile: ## Attack the built program beside embedded Kafkas (KAFKA=apache beside Apache Kafka)
	GEOGATE_TEST_HOSTILE=1 $(if $(filter apache,$(KAFKA)),GEOGATE_TEST_KAFKA=1 )$(GO) test -count=1 -timeout 25m $(if $(RUN),-run '$(RUN)') ./testbench/hostile

flaky: gcc ## Run every package's tests COUNT times, alone and beside a load, and print what failed how often (PROGRESS=FILE: in stretches)
	$(LEAN) $(GO) run ./testbench/flaky -pkg '$(PKG)' -build '$(BUILDTEST)' -plain '$(ONEGOROUTINE)' $(FLAKY)

check: lint vuln ## Format, vet, staticcheck, import table, known vulnerabilities

fmt: ## Format the sources
	$(TOOL) gofumpt -w $$($(GO) list -f '{{.Dir}}' ./...)

lint: ## Check format, vet, staticcheck and the rules of internal/lint
	@unformatted=$$($(TOOL) gofumpt -l $$($(GO) list -f '{{.Dir}}' ./...)); \
	  if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	$(GO) test ./internal/lint

# The database of vulnerabilities is on the network; where it cannot be reached
# there is nothing to compare with, which is said and is no failure.
vuln: ## Compare the dependencies with the vulnerability database, where reachable
	@out=$$(mktemp); trap 'rm -f "$$out"' EXIT; \
	  if $(TOOL) govulncheck ./... >"$$out" 2>&1; then tail -3 "$$out"; \
	  elif grep -qE 'fetching vulnerabilities|dial tcp|no such host|HTTP GET|Forbidden|timeout' "$$out"; then \
	    echo "vuln: not checked, the database cannot be reached"; \
	  else cat "$$out"; exit 1; fi

fuzz: ## Run every fuzz target for FUZZTIME
	@set -e; grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do \
	  grep -ho '^func Fuzz[A-Za-z0-9_]*' $$dir/*_test.go | cut -c6- | while read -r target; do \
	    echo "== $$dir $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$dir; \
	  done; \
	done

sim: ## Simulate SEEDS seeds of both WORLDS (SEED=n WORLDS=ownership replays one), or with MUTANTS=1 check that faults are caught
ifdef MUTANTS
	$(GO) run ./testbench/sim --mutants $(ARGS)
else
	@set -e; for world in $(WORLDS); do \
	  $(GO) run ./testbench/sim --world $$world $(if $(SEED),--seed $(SEED),--seeds 1-$(SEEDS)); done
endif

# Tests that repeat something take the number from testbench/rounds: few rounds in make
# test, all of them here. Their packages are those whose tests import it.
MANYROUNDS := github.com/geogate/geogate/testbench/rounds
soak: gcc ## Simulate SOAK seeds of both WORLDS that were never run before, and run tests that repeat something with all their rounds
	@set -e; first=$$(date +%s)00000; for world in $(WORLDS); do \
	  $(GO) run ./testbench/sim --world $$world --first --seeds $$first-$$((first + $(SOAK) - 1)); done
	GEOGATE_TEST_ROUNDS=all $(LEAN) CGO_ENABLED=1 $(GO) test -race -vet=off -count=1 -timeout 60m \
	  $$($(GO) list -f '{{$$p := .ImportPath}}{{range .TestImports}}{{if eq . "$(MANYROUNDS)"}}{{println $$p}}{{end}}{{end}}{{range .XTestImports}}{{if eq . "$(MANYROUNDS)"}}{{println $$p}}{{end}}{{end}}' ./... | sort -u | grep -v '/testbench/rounds$$')

bench: ## Run all benchmarks
	$(GO) test -run '^$$' -bench . -benchmem -timeout 30m $(PKG)

# Figures beside a raw producer, see docs/benchmarks.md: KAFKA=apache on real brokers,
# PROFILE=DIR takes CPU profiles of the gateway, JSON=FILE keeps the figures, BEFORE=PATH
# measures an older program in turn, ARGS= for further flags.
measure = $(GO) run ./testbench/bench -geogate $(BIN)/geogate -kafka $(or $(KAFKA),embedded) $(if $(BEFORE),-before '$(BEFORE)') \
            $(if $(PROFILE),-profile '$(PROFILE)') $(if $(JSON),-json '$(JSON)') $(1) $(ARGS)

bench-write: build ## Measure writes and reads of entities (KAFKA=apache, PROFILE=DIR, JSON=FILE, BEFORE=PATH of an older program)
	$(call measure,-work write)

bench-fold: build ## Measure the fold of native events and the read of a merged topic (the same settings)
	$(call measure,-work fold)

bench-start: build ## Measure a stop and a kill under load (the same settings)
	$(call measure,-work start)

bench-idle: build ## Measure what an idle region of 25 seats costs (the same settings; ARGS="-partitions 1000")
	$(call measure,-work idle)

bench-kills: build ## Load both regions while their gateways are killed in turn, and check all that was answered (KAFKA=apache, ARGS="-seconds 10m -rate 10000")
	$(call measure,-work kills)

bench-years: build ## Write for long with a window of 60 s, short retention and fences, and follow what grows (KAFKA=apache, ARGS="-seconds 30m -svg FILE")
	$(call measure,-work years)

soak-real: build ## Load both regions for an hour through kills and fences with retention of 60 s, check all and that nothing grows (ARGS="-seconds 5m -svg FILE")
	$(GO) run ./testbench/bench -geogate $(BIN)/geogate -kafka $(or $(KAFKA),apache) -work soak -seconds 1h -rate 2000 -every 30s $(ARGS)

bench-table: build ## Measure everything on both Kafkas and print the rows of docs/benchmarks.md (BEFORE=PATH, JSON=FILE)
	$(call measure,-kafka apache$(,)embedded -work write$(,)fold$(,)start$(,)idle$(,)idle1000 -markdown)

alerts: ## Test the alert rules with Prometheus' rule engine, a module of its own
	cd deploy/prometheus && $(GO) vet . && $(GO) test .

accept: build ## Run the acceptance against bin/geogate (KAFKA=apache on real brokers)
	$(GO) run ./testbench/accept -geogate $(BIN)/geogate -kafka $(or $(KAFKA),embedded)

gcc:
	@command -v gcc >/dev/null || { \
	  echo "installing gcc for the race detector"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc libc6-dev >/dev/null; }

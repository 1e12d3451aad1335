# IOP: everything that is done by hand has a target here. `make help` prints them.
.DEFAULT_GOAL := help

GO       ?= go
BIN      := bin
TOOLS    := -modfile=scripts/tools/go.mod
CACHE    := $(or $(IOP_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/iop)
OLLAMA   := $(CACHE)/ollama
FUZZTIME ?= 30s

.PHONY: help
help: ## print this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

# ---- build and run -------------------------------------------------------------------------------------------------

# With it the runtime erases what cryptography leaves of a provider's key in memory (linux on amd64 and arm64).
SHIELD = $(shell GOEXPERIMENT=runtimesecret $(GO) version >/dev/null 2>&1 && echo runtimesecret)

.PHONY: build
build: ## build both programs into bin/
	GOEXPERIMENT=$(SHIELD) $(GO) build -trimpath -buildvcs=auto -ldflags '-s -w' -o $(BIN)/ ./apps/edge/cmd/iop-edge ./apps/node/cmd/iop-node

.PHONY: demo
demo: build ## start an edge and a node with the embedded provider, stream one chat answer through them, stop
	$(GO) run ./scripts/demo -bin $(BIN)

.PHONY: run-edge
run-edge: build dev-token ## run the edge with configs/edge.yaml (127.0.0.1: callers 8080, nodes 7443, admin 8081)
	$(BIN)/iop-edge serve -c configs/edge.yaml

.PHONY: run-node
run-node: build dev-token ## run a node with configs/node.yaml, in a second terminal
	$(BIN)/iop-node serve -c configs/node.yaml

# The token of the development node: made once on this machine, ignored by git.
.PHONY: dev-token
dev-token: build
	@$(BIN)/iop-edge token new local --keep --token-file configs/node.token --hash-file configs/state/local.token.sha256

# ---- give to others ------------------------------------------------------------------------------------------------

.PHONY: dist
dist: ## static programs, manual pages, completions, units and examples, as dist/iop-*.tar.gz
	scripts/dist.sh dist

.PHONY: packages
packages: ## the same, and a deb and an rpm
	scripts/dist.sh dist package

.PHONY: compose-up
compose-up: dist ## build the image and bring docker-compose.yaml up: edge and node in mode managed
	if docker compose version >/dev/null 2>&1; then docker compose up -d --build; else docker-compose up -d --build; fi

# ---- test ----------------------------------------------------------------------------------------------------------

.PHONY: check
check: lint check-generated model test test-race test-e2e test-clients test-console test-alerts test-compose mutants-today fuzz-today ## everything that must pass; what CI runs

.PHONY: test
test: ## unit and in-process tests
	$(GO) test -count=1 ./...

.PHONY: model
model: ## check the model of admission with spin
	apps/edge/internal/admission/model/check.sh

.PHONY: test-race
test-race: ## the same under the race detector
	$(GO) test -race -count=1 ./...

# A seed that finds something is named with the command that replays it.
.PHONY: sim
sim: ## simulation on fake time: SEED=n replays one with its history (LOGS=1: and the logs), SEEDS=50000 plays that many fresh ones (1000)
ifdef SEED
	$(GO) test -count=1 -timeout 0 -v -run '^TestReplay$$' ./e2e/sim -sim.seed=$(SEED) $(if $(LOGS),-sim.log)
else
	$(GO) test -count=1 -timeout 0 -v -run '^TestSimulation$$' ./e2e/sim -sim.seeds=$(or $(SEEDS),1000) $(if $(FROM),-sim.from=$(FROM))
endif

.PHONY: test-long
test-long: ## the cases that need real minutes
	IOP_LONG=1 $(GO) test -count=1 -timeout 60m -run 'Long' ./...

.PHONY: test-e2e
test-e2e: build provider previous ## real processes: edge and node smoke, OpenAI smoke against a real llama-server, an Ollama where there is one
	$(SAY_OLLAMA)
	IOP_BIN=$(abspath $(BIN)) IOP_PROVIDER=$(CACHE)/llama IOP_OLLAMA=$(OLLAMA) IOP_PREVIOUS=$(CACHE)/previous $(GO) test -tags e2e -count=1 -timeout 15m ./e2e/...

.PHONY: previous
previous: ## build the previous release, which edges and nodes of this one must work with
	scripts/previous.sh $(CACHE)/previous || [ $$? = 3 ]

SAY_OLLAMA = @test -x $(OLLAMA)/ollama || echo "skipped: what needs a real Ollama, since there is none in $(OLLAMA) (make ollama builds it)"

.PHONY: test-clients
test-clients: build provider ## the official clients (Go, npm, the ollama command), directly and through the edge
	cd e2e/clients && IOP_BIN=$(abspath $(BIN)) IOP_PROVIDER=$(CACHE)/llama IOP_OLLAMA=$(OLLAMA) IOP_CACHE=$(CACHE) $(GO) test -count=1 -timeout 10m
# Without a list of packages go test shows what a test binary prints: what was skipped, and why.

.PHONY: test-alerts
test-alerts: ## the alert rules and the dashboard's queries, by Prometheus' own code
	cd e2e/promql && $(GO) test -count=1

SHOTS ?=
.PHONY: test-console
test-console: build ## the console in a headless Chromium, where there is one; SHOTS=DIR keeps pictures of each of its states
	cd e2e/console && IOP_BIN=$(abspath $(BIN)) IOP_CACHE=$(CACHE) IOP_SHOTS=$(abspath $(SHOTS)) $(GO) test -count=1 -timeout 10m

MINUTES ?= 2
SOAK    ?=

.PHONY: soak
soak: build ## edge, nodes and providers as processes under load and random faults for MINUTES (2), then nothing may be left; SOAK="-seed N"
	$(GO) run ./e2e/soak -bin $(BIN) -minutes $(MINUTES) $(SOAK)

.PHONY: test-compose
test-compose: dist ## docker-compose.yaml, where a Docker engine runs or can be started; three minutes at most
	timeout -k 240 180 scripts/compose-smoke.sh dist || case $$? in 124|137) echo "skipped: compose-smoke: not done after three minutes";; *) exit 1;; esac

.PHONY: test-packages
test-packages: ## the deb in a fresh Debian, under its units (root, systemd-nspawn and debootstrap are needed)
	scripts/package-test.sh

.PHONY: mutants
mutants: ## plant bugs, one at a time, in copies: the tests must notice each of them
	$(GO) run ./scripts/mutants

# CI has thirty minutes for everything. What there is no time for is left to another day; each day begins elsewhere.
.PHONY: mutants-today
mutants-today:
	$(GO) run ./scripts/mutants -budget 90s

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (30s), as many side by side as there are cores
	GO="$(GO)" scripts/fuzz.sh $(FUZZTIME)

.PHONY: fuzz-today
fuzz-today:
	GO="$(GO)" scripts/fuzz.sh $(FUZZTIME) 240

.PHONY: bench
bench: build ## benchmarks and the end-to-end comparison with direct and ReverseProxy
	$(GO) test -run '^$$' -bench . -benchmem ./packages/... ./apps/...
	$(GO) run ./e2e/bench -bin $(BIN)

# ---- keep ----------------------------------------------------------------------------------------------------------

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@out=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); test -z "$$out" || { echo "not formatted:"; echo "$$out"; exit 1; }
	$(GO) vet ./... && $(GO) vet -tags e2e ./e2e/...
	$(GO) tool $(TOOLS) staticcheck ./... && $(GO) tool $(TOOLS) staticcheck -tags e2e ./e2e/...

.PHONY: proto
proto: ## generate proto/iop/runtime.pb.go
	cd scripts/protogen && $(GO) run . ../..

.PHONY: check-generated
check-generated: proto ## fail when the committed generated code differs from its source
	git diff --exit-code -- proto

.PHONY: provider
provider: ## a real llama.cpp server and its tiny models, kept in the user's cache
	scripts/provider.sh $(CACHE)/llama

.PHONY: ollama
ollama: ## a real Ollama, built once and kept in the user's cache (4 to 8 minutes); tests that need it are skipped without
	scripts/install-ollama.sh $(OLLAMA)

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN) dist

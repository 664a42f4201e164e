# Colony. The two commands are `make up` and `make test`; `make help` lists the rest.
SHELL   := bash
GO      ?= go
# The release is in VERSION. A build of another commit than the one that made it, or of
# changed files, adds which: 0.1.0+g1a2b3c4d-dirty (SemVer 2, build metadata).
RELEASE := $(shell cat VERSION)
COMMIT  := $(shell git describe --always --dirty --exclude='*' --abbrev=8 2>/dev/null)
VERSION := $(RELEASE)$(if $(filter-out $(shell git log -1 --format=%h --abbrev=8 -- VERSION 2>/dev/null),$(COMMIT)),+g$(COMMIT))
# Without the folder's path in what is compiled, the clones of one machine share it, and so the results of tests of packages that have not
# changed.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)
LDFLAGS := -s -w -X main.version=$(VERSION)
BUILD   := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)'
# The agent leaves out of its libraries what it does not use: gRPC traces, and HTTP/2 in the
# client that pulls images (HTTP/1.1 serves as well; gRPC has its own HTTP/2).
SLIM    := grpcnotrace,nethttpomithttp2
TOOL    := $(GO) tool -modfile=tools.mod
SAMPLES := $(notdir $(wildcard examples/images/*))

# Settings of `make up`: make up STATE=/path ARGS='--http 127.0.0.1:9000' DETACH=1
STATE   ?= /var/lib/colony
DETACH  ?=
ARGS    ?=

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## install what is missing on this machine (containerd, runc, CNI plugins, PostgreSQL, git)
	@scripts/setup

.PHONY: build
build: ## build bin/colony, bin/colony-en, bin/colony-init and the samples
	@mkdir -p bin/samples
	@echo "building bin/colony, bin/colony-en, bin/colony-init and the samples ..."
	@$(BUILD) -o bin/ ./cmd/colony
	@$(BUILD) -tags $(SLIM) -o bin/ ./cmd/colony-en ./cmd/colony-init
	@$(BUILD) -o bin/samples/ $(SAMPLES:%=./examples/images/%)

.PHONY: up
up: setup build ## run CO, LO and EN on this machine with a sample application, until Ctrl-C
	@exec bin/colony up --state-dir '$(STATE)' --samples examples --sample-binaries bin/samples $(if $(DETACH),--detach) $(ARGS)

.PHONY: down
down: ## stop what `make up DETACH=1` started
	@bin/colony down --state-dir '$(STATE)'

.PHONY: test
test: ## everything that must hold, on real parts, with a summary at the end
	@scripts/setup --with-test-peers
	@$(MAKE) --no-print-directory build
	@scripts/test

# Settings of `make stress`: make stress COUNT=3 PACKAGES=./lo/...
COUNT    ?= 10
PACKAGES ?=

.PHONY: stress
stress: ## the suite on a busy machine, COUNT times: no test may depend on the machine's speed
	@scripts/setup --with-test-peers
	@COUNT=$(COUNT) scripts/stress $(PACKAGES)

.PHONY: check
check: ## vet, staticcheck, gofumpt, deadcode, the architecture
	$(GO) vet ./...
	@! $(TOOL) gofumpt -l $$(git ls-files '*.go') | grep . || (echo 'run: make fmt' >&2; exit 1)
	$(TOOL) staticcheck ./...
	@! $(TOOL) deadcode -test ./... | grep .
	$(GO) test -count=1 ./internal/archtest

.PHONY: licences
licences: ## list the licences of third-party modules; fail on one that does not go with Apache-2.0 and MIT
	@scripts/licences

.PHONY: fmt
fmt: ## format the code
	$(TOOL) gofumpt -w $$(git ls-files '*.go')

.PHONY: bench
bench: build ## measure: deploy latency, agent, journal, store, the link and the broker beside their peers
	@scripts/setup --with-test-peers
	@scripts/bench

# Settings of `make bench-link`: make bench-link LINK='-short -link colony,bridge-tuned -scenario 1,3'
LINK    ?=

.PHONY: bench-link
bench-link: setup build ## what becomes of acknowledged messages when the link fails, beside Mosquitto bridge and autopaho
	@scripts/bench-link $(LINK)

.PHONY: guest
guest: build ## the units of packaging/systemd in a virtual machine with systemd as its first process: installed, killed, started again: scripts/guest
	@scripts/guest

.PHONY: chaos
chaos: setup build ## some hours of kills, damaged files, a narrow link and idle sites, on real parts: scripts/chaos
	@scripts/chaos

# Settings of `make fuzz`: make fuzz FUZZTIME=10m FUZZPACKETS=10000000 FUZZDOCUMENTS=100000 FUZZREQUESTS=10000
FUZZTIME      ?= 1m
FUZZPACKETS   ?= 1000000
FUZZDOCUMENTS ?= 10000
FUZZREQUESTS  ?= 1000

.PHONY: fuzz
fuzz: ## the broker's readers, those of its packets and of its sessions on disk, the signed statements, and a running broker with mutated packets, Margo documents beside their schemas, the import beside the compiler, every route of the API (`make test` has a short form)
	@set -e; for p in ./broker/packet ./broker/sessions/state ./protocol/sign; do for f in $$($(GO) test $$p -list '^Fuzz' | grep ^Fuzz); do \
	  $(GO) test $$p -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME); done; done
	COLONY_FUZZ_PACKETS=$(FUZZPACKETS) $(GO) test ./broker -run '^TestRaw(Wire|TLS|WebSocket)$$' -count=1 -v -timeout 10h
	COLONY_MARGO_DOCUMENTS=$(FUZZDOCUMENTS) $(GO) test ./margo/v1rc3 -run 'AgainstTheSchema|WrittenDeployments' -count=1 -v -timeout 10h
	$(GO) test ./co/lint -run '^TestWhatIsAcceptedCompiles$$' -rapid.checks=$(FUZZDOCUMENTS) -rapid.nofailfile -count=1 -v -timeout 10h
	COLONY_API_REQUESTS=$(FUZZREQUESTS) $(GO) test ./co/api -run '^TestHostileRequests$$' -count=1 -v -timeout 10h

# Settings of `make bench-broker`: make bench-broker BROKER='-short -only fan'
BROKER  ?=

.PHONY: bench-broker
bench-broker: ## our broker beside Mosquitto: memory, processor, throughput, loss
	@scripts/setup --with-test-peers
	@$(GO) run ./bench/broker $(BROKER)

# Settings of `make mosquitto-suite`: make mosquitto-suite SUITE='-run ^07 -v'
SUITE   ?=

.PHONY: mosquitto-suite
mosquitto-suite: ## the tests of Mosquitto's source package against our broker: broker/DESIGN.md says which fail, and why
	@scripts/mosquitto-suite $(SUITE)

.PHONY: compose-peer
compose-peer: ## the scenarios of Compose keys under Podman and podman-compose, beside Colony: docs/compose.md says what differs
	@go vet -tags peer ./e2e/semantics && go test -tags peer -count=1 -timeout 90m ./e2e/semantics -run TestPeer -v

# Settings of `make bench-co`: make bench-co CO='-scale 0.1 -only reads'
CO      ?=

.PHONY: bench-co
bench-co: ## the CO's database with a fleet of 10,000 sites: each read in pages and time, events per second
	@scripts/setup
	@$(GO) run ./bench/co $(CO)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

# Targets of Turnstone. A new machine needs Go and make; `make setup` installs the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.NOTPARALLEL: # setup comes before build

GO ?= go
FUZZTIME ?= 10s
TIMEOUT ?= 30m
PREFIX ?= /usr/local

# The library that is preloaded into a step's bash: it must not require or load a C library.
CC ?= cc
TRACER = $(CC) -std=gnu11 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Wno-address -shared -fPIC -nostdlib -ffreestanding \
	-fno-builtin -fno-stack-protector -fvisibility=hidden -fno-tree-loop-distribute-patterns -fno-asynchronous-unwind-tables \
	-Wl,-z,noseparate-code,-z,norelro,-z,now,--hash-style=both,--build-id=none -s -o .cache/build/tracer.so internal/guest/trace/tracer.c

# The first process in the PID namespace of a sandbox's processes.
INIT = $(CC) -std=gnu11 -Os -Wall -Wextra -Werror -static -nostdlib -ffreestanding -fno-builtin -fno-stack-protector \
	-fno-pie -no-pie -fno-asynchronous-unwind-tables -Wl,-z,noseparate-code,-z,norelro,-z,noexecstack,--build-id=none -s \
	-o .cache/build/init internal/guest/process/init.c

# With these tags a package that has no C code is compiled the same with and without cgo, so all programs, and
# those of the tests, share what they consist of.
TAGS = -tags=netgo,osusergo

# Static programs run on every Linux; cgo, because the parser's grammars are C.
STATIC = CGO_ENABLED=1 $(GO) build -trimpath -buildvcs=false $(TAGS) -ldflags '-s -w -linkmode external -extldflags "-static"'

# The flags of make build, so that vet and tests find what it compiled: two builds of everything, one of
# them with the race detector, and no third one.
SHARED = GOFLAGS='$(strip $(shell $(GO) env GOFLAGS) -trimpath $(TAGS))'

# gVisor's program with the additions in runsc/. Raise the last number if the additions change in a
# way that turn must detect: see package internal/driver/gvisor.
RUNSC_VERSION := 20260905.0+turnstone.10
RUNSC_INPUTS := $(shell find runsc -type f ! -name '*.md' ! -name '*_test.go') Makefile

.PHONY: help
help: ## list the targets
	@echo "usage: make TARGET"
	@echo
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## /\1\t/p' Makefile | while IFS=$$'\t' read -r name what; do \
		printf '  %-8s %s\n' "$$name" "$$what"; done

.PHONY: setup
setup: ## install the Debian packages that are missing, and check Go
	@scripts/setup >&2

.PHONY: setup-tests
setup-tests:
	@scripts/setup tests >&2

.PHONY: setup-bench
setup-bench:
	@scripts/setup bench >&2

# A program that is the same keeps its file: go test takes no result from its cache if a file that a test has seen
# was changed since.
.PHONY: build
build: bin/runsc ## build bin/turn, bin/turn-server and bin/runsc
	@mkdir -p internal/guest/agentbin/bin bin .cache/build
	$(TRACER)
	$(INIT)
	@install -C -m 644 .cache/build/tracer.so internal/guest/trace/bin/tracer.so
	@install -C -m 755 .cache/build/init internal/guest/process/bin/init
	$(STATIC) -o .cache/build/ ./cmd/turn-agent
	@install -C -m 755 .cache/build/turn-agent internal/guest/agentbin/bin/agent
	@cd internal/guest/agentbin/bin && sha256sum agent | cmp -s - agent.sha256 || sha256sum agent > agent.sha256
	$(STATIC) -o .cache/build/ ./cmd/turn ./cmd/turn-server
	@install -C -m 755 .cache/build/turn .cache/build/turn-server bin/

# kubectl finds its plug-ins by their names in PATH: kubectl turn is turn.
.PHONY: install
install: ## install the built programs, and kubectl turn, in PREFIX
	install -d '$(DESTDIR)$(PREFIX)/bin'
	install bin/turn bin/turn-server bin/runsc '$(DESTDIR)$(PREFIX)/bin/'
	ln -sf turn '$(DESTDIR)$(PREFIX)/bin/kubectl-turn'

# The libraries of Kubernetes take minutes to build, so turn does not wait for them.
.PHONY: operator
operator: ## build bin/turn-operator, for Kubernetes
	@mkdir -p bin
	$(STATIC) -o bin/turn-operator ./cmd/turn-operator

# This build takes more than a minute, and runs only after a change in runsc/.
bin/runsc: $(RUNSC_INPUTS)
	@mkdir -p bin
	cd runsc && $(GO) run -mod=readonly ./overlay ../.cache/runsc
	cd runsc && CGO_ENABLED=0 $(GO) run -mod=readonly -modfile ../.cache/runsc/go.mod -trimpath $(TAGS) -buildvcs=false \
		gvisor.dev/gvisor/runsc/boot/filter/turnstonegen ../.cache/runsc/gvisor/runsc/boot/filter/turnstone_programs.go
	cd runsc && CGO_ENABLED=0 $(GO) build -mod=readonly -modfile ../.cache/runsc/go.mod -trimpath $(TAGS) -buildvcs=false \
		-ldflags '-s -w -X gvisor.dev/gvisor/runsc/version.version=$(RUNSC_VERSION)' -o ../bin/runsc .

# The RuntimeClass of containerd, with the helper that it puts into sandboxes: docs/shim.md.
SHIM = cd shim && CGO_ENABLED=0 $(GO) build -mod=readonly -trimpath $(TAGS) -buildvcs=false -ldflags '-s -w' -o

.PHONY: shim
shim: build ## build bin/containerd-shim-turnstone-v2
	$(SHIM) pod/bin/podinit ./cmd/podinit
	@cd shim/pod/bin && sha256sum podinit | cmp -s - podinit.sha256 || sha256sum podinit > podinit.sha256
	$(SHIM) ../bin/containerd-shim-turnstone-v2 ./cmd/containerd-shim-turnstone-v2

.PHONY: shim-integration
shim-integration: setup-tests shim ## run containerd's own tests of the CRI against the shim, as root
	cd shim && CGO_ENABLED=0 TURN_TEST_INTEGRATION=1 $(GO) test -trimpath -v -timeout $(TIMEOUT) -count 1 -run '^TestIntegration$$' ./testbed

.PHONY: shim-client
shim-client: setup-tests shim ## run containerd's own tests of a runtime by its client against the shim, as root
	cd shim && CGO_ENABLED=0 TURN_TEST_CLIENT=1 $(GO) test -trimpath -v -timeout $(TIMEOUT) -count 1 -run '^TestClient$$' ./testbed

.PHONY: critest
critest: setup-tests shim ## run the conformance tests of the CRI against the shim, as root
	cd shim && CGO_ENABLED=0 TURN_TEST_CRITEST=1 $(GO) test -trimpath -v -timeout $(TIMEOUT) -count 1 -run '^TestCritest$$' ./testbed

.PHONY: kube-e2e
kube-e2e: setup-tests shim operator ## run pods and sandboxes in a cluster whose processes are killed (pods: as root)
	cd internal/kube/e2e && CGO_ENABLED=0 $(GO) test -trimpath $(TAGS) -v -timeout $(TIMEOUT) -count 1 $(if $(ONLY),-run '$(ONLY)') .

.PHONY: run
run: setup build ## set up, build, and run examples/weather.md
	bin/turn run examples/weather.md

# A guest kernel made for tests, which also boots where the host's KVM runs no stock kernel. The
# file is beside the checkout, if present; docs/substrates.md describes the kernel.
TEST_KERNEL ?= $(abspath $(wildcard ../shared/kvm/vmlinux))
export TEST_KERNEL

# What runs where, and what it costs, is in docs/testing.md. BASE is the commit that the change is compared with.
TESTRUN = @GO='$(GO)' $(SHARED) $(GO) run ./internal/testrun $(if $(FULL),-full) $(if $(BASE),-base $(BASE))

.PHONY: check
check: setup-tests ## vet, staticcheck, gofmt, generated files, the chart, the clients
	$(TESTRUN) check

.PHONY: short
short: build ## run the tests that start no machine
	$(TESTRUN) short

.PHONY: test
test: setup-tests shim ## set up, build, and run every test once
	$(TESTRUN) test

.PHONY: test-again
test-again: setup-tests build $(if $(FULL),shim) ## run what a change reaches in other ways; FULL=1: everything
	$(TESTRUN) again

.PHONY: busy
busy: setup-tests shim ## run tests N times, or WHOLE=test once, on a busy machine
	$(TESTRUN) $(if $(WHOLE),-busy $(WHOLE),-n $(or $(N),10) busy $(PACKAGES))

.PHONY: soak
soak: setup-tests build ## run turns through a server with kills for SOAK_FOR (default 1h)
	TURN_SOAK_FOR=$(or $(SOAK_FOR),1h) $(GO) test -v -timeout 0 -count 1 -run '^TestSoak$$' ./cmd/turn
	TURN_SOAK_TURNS=$(or $(SOAK_TURNS),2000) $(GO) test -v -timeout 0 -count 1 -run '^TestSoak$$' ./cmd/turn

.PHONY: test-ui
test-ui: setup-tests ## run the tests of turn ui in Chromium, and check the types of its page
	TURN_TEST_BROWSER=1 TURN_TEST_PICTURES='$(CURDIR)/.cache/pictures' $(GO) test -v -timeout $(TIMEOUT) -count 1 ./internal/ui/...
	scripts/test-suites ui

.PHONY: image
image: build operator ## build the OCI image bin/turnstone-image.tar, and print its digest
	@$(GO) run ./packaging/image --out bin/turnstone-image.tar $(if $(PUSH),--push $(PUSH))

.PHONY: node-image
node-image: setup build ## the same for nodes of a cluster: bin/turnstone-node-image.tar
	@$(GO) run ./packaging/image --node --mirror '$(TURN_DEBIAN_MIRROR)' --security-mirror '$(TURN_DEBIAN_SECURITY_MIRROR)' \
		--out bin/turnstone-node-image.tar $(if $(PUSH),--push $(PUSH))

.PHONY: proto
proto: ## check proto/, and generate internal/api and docs/api.md
	@GO=$(GO) scripts/proto

.PHONY: bench
bench: setup-bench build ## measure speed and size, or compare with BASE; print markdown
	$(SHARED) $(GO) build -buildvcs=false -o .cache/bench ./internal/bench
	@case ",$(if $(BASE),,$(or $(ONLY),kubernetes))," in *,kubernetes,*) \
		export $(SHARED); \
		$(GO) build -buildvcs=false -o .cache/kube-bench ./internal/kube/bench && \
		$(GO) build -buildvcs=false -o .cache/turn-operator ./cmd/turn-operator && \
		.cache/kube-bench -bin bin -operator .cache/turn-operator $(if $(QUICK),-quick);; esac
	@[ '$(ONLY)$(BASE)' = kubernetes ] || GO='$(GO)' $(SHARED) .cache/bench -build $(if $(QUICK),-quick) \
		$(if $(TEST_KERNEL),-kernel '$(TEST_KERNEL)') $(if $(ONLY),-only $(ONLY)) $(if $(RUNS),-runs $(RUNS)) \
		$(if $(CORPUS),-groups $(CORPUS)) $(if $(TIER),-tier $(TIER)) $(if $(BASE),-base $(BASE)) $(if $(ROUNDS),-rounds $(ROUNDS))

.PHONY: fuzz
fuzz: build ## fuzz every decoder for FUZZTIME each (default 10s)
	@scripts/fuzz $(FUZZTIME)

.PHONY: clean
clean: ## remove built files; the state in TURN_HOME stays
	rm -rf bin .cache shim/pod/bin/podinit* internal/guest/agentbin/bin/agent internal/guest/trace/bin/tracer.so internal/guest/process/bin/init

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
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.7.0

# The library that is preloaded into a step's bash: it must not require or load a C library.
CC ?= cc
TRACER = $(CC) -std=gnu11 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Wno-address -shared -fPIC -nostdlib -ffreestanding \
	-fno-builtin -fno-stack-protector -fvisibility=hidden -fno-tree-loop-distribute-patterns -fno-asynchronous-unwind-tables \
	-Wl,-z,noseparate-code,-z,norelro,-z,now,--hash-style=both,--build-id=none -s -o internal/guest/trace/bin/tracer.so internal/guest/trace/tracer.c

# The first process in the PID namespace of a sandbox's processes.
INIT = $(CC) -std=gnu11 -Os -Wall -Wextra -Werror -static -nostdlib -ffreestanding -fno-builtin -fno-stack-protector \
	-fno-pie -no-pie -fno-asynchronous-unwind-tables -Wl,-z,noseparate-code,-z,norelro,-z,noexecstack,--build-id=none -s \
	-o internal/guest/process/bin/init internal/guest/process/init.c

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
RUNSC_VERSION := 20260905.0+turnstone.9
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

.PHONY: build
build: bin/runsc ## build bin/turn, bin/turn-server and bin/runsc
	@mkdir -p internal/guest/agentbin/bin bin
	$(TRACER)
	$(INIT)
	$(STATIC) -o internal/guest/agentbin/bin/agent ./cmd/turn-agent
	cd internal/guest/agentbin/bin && sha256sum agent > agent.sha256
	$(STATIC) -o bin/turn ./cmd/turn
	$(STATIC) -o bin/turn-server ./cmd/turn-server

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

.PHONY: run
run: setup build ## set up, build, and run examples/weather.md
	bin/turn run examples/weather.md

# A guest kernel made for tests, which also boots where the host's KVM runs no stock kernel. The
# file is beside the checkout, if present; docs/substrates.md describes the kernel.
TEST_KERNEL ?= $(abspath $(wildcard ../shared/kvm/vmlinux))
export TEST_KERNEL

# The scripts with machines run on the substrate that turn selects here; these scripts also on QEMU. Where
# scripts/test-kvm runs the others on QEMU under KVM, they do not run a third time, without KVM; nor does what
# only the guest decides of QEMU's conformance suite (GUEST) run again with the race detector.
ON_KVM := $(and $(TEST_KERNEL),$(wildcard /dev/kvm))
ON_QEMU := (home|lifetime|network|secret|channel$(if $(ON_KVM),,|run|session|kept|sandbox-fork))
AS_USER := $(filter 0,$(shell id -u))
GUEST = $(strip $(file <scripts/guest-tests))

# What runs where, and what it costs, is in docs/testing.md. make test runs everything once; make test-again
# runs it in other ways: with the race detector, under KVM, on QEMU, and as an ordinary user.
#
# What waits more than it computes has more processes than processors. The packages that take longest come first,
# so that none of them runs alone at the end. The soak runs for five minutes, with faults, and then the suites in
# other languages; beside them are the operator with a real API server, and the shim's pods. After a failed part
# the other parts still run. make check has vetted the tests. The tests of turn ui run in Chromium, and keep
# pictures of the page in .cache/pictures. -s leaves out what only a debugger reads, and a third of each link.
#
# The race detector makes each of the scripts' and the corpus's many processes slow, so these run without it. So
# do the packages that link the libraries of Kubernetes, whose second build would take minutes; what computes
# alone (COMPUTES without the tests of GOROUTINES, SWEEPS); and what starts no goroutine (SERIAL). make race runs
# with it what make test-again leaves out, but for Kubernetes. A program with the detector sleeps for a second
# before it exits, in which other goroutines may still race; thousands of the tests' processes would sleep so for
# many minutes, so GORACE says less. The detector would see only the clients of the soak.
BROWSER = TURN_TEST_BROWSER=1 TURN_TEST_PICTURES='$(CURDIR)/.cache/pictures'
KUBERNETES = ./internal/kube/... ./cmd/turn-operator
COMPUTES = $(addprefix ./,internal/channel/authority internal/driver/snapshots internal/fsimage/lowerdir internal/lang/syntax \
	internal/proof/key internal/repo internal/store/merge internal/template/oci)
GOROUTINES = ^Test(Agent|AtOnce|Cases|Concurrent|EndlessAnswers|EnsureRace|Faults|Folder.*|GCBesideTurns|NoteUseInParallel|Prune|Resumes|ResumesDamage|ShredSweepsMemory|StackTogether|StoreInABucket|Together)$$
SERIAL = $(addprefix ./,document internal internal/api internal/brief internal/cli/flags internal/cli/hostcmd \
	internal/cli/proofcmd internal/config internal/doctor internal/driver internal/driver/console \
	internal/driver/disk internal/driver/firecracker/internal/apispec internal/driver/host internal/driver/kit \
	internal/e2b/pass internal/filestamp internal/fixedport internal/fleet internal/fleet/sim \
	internal/fsimage/ext4 internal/fsimage/tar2erofs internal/fsimage/upperdir internal/guest/agentbin \
	internal/guest/kernel/need internal/guest/parked internal/host internal/hostca internal/hostpath \
	internal/keyring/ringconfig internal/lang/diagnose internal/netplan internal/network \
	internal/network/sniff internal/otlp internal/plan internal/proof internal/remote/runner \
	internal/repo/bundle internal/repo/chain internal/repo/compare internal/repo/location \
	internal/repo/rootimage internal/repo/templatefiles internal/repo/trace internal/sandbox/collect \
	internal/secret internal/server/config internal/server/controller/message \
	internal/server/controller/placing internal/server/controller/quota internal/server/controller/usage \
	internal/server/node/certificate internal/server/node/rights \
	internal/server/patience internal/server/principal internal/server/tlsfiles internal/server/trail \
	internal/sqlitefault internal/store/blob/local internal/store/codec internal/store/sweeps internal/suggest \
	internal/template/builtin internal/template/share internal/template/treeindex internal/template/wheel \
	internal/tomlnest internal/turn/inputs internal/turn/netrecord internal/turn/place internal/turn/resume \
	internal/turn/state internal/turn/transcript internal/turnlog internal/ui/web/bundle manifest \
	sdk/python/gen substrate wire/internal/gen)
ALONE = ./packaging/image ./internal/server/markertest $(COMPUTES) $(SERIAL)
SWEEPS = ^Test(AnyByteOfAPack|(Sealed)?CheckpointCrash|Commit(Crashes|Faults)|Crash(Commit|Sweep)|EqualContentsDoNotShow|ExportIsTheDisk|FloodOf(Creations|Requests)|Fragments|LyingServer|ManagedHasIndex|ManyTexts|PlansGolden|PortScan|PropertyOneKeyRunsOnce|Repeats|SealAtEachStep|Sealed(Model|RoundTrip)|Streaming|TooManyConnections|Window)$$|^TestSQLite$$/^Model$$
SWEPT = $(addprefix ./internal/,cdp engine guest/agent network/netstack network/recording server/controller server/records store turn)
QEMU = ./internal/driver/qemu
LONGEST = $(addprefix ./,cmd/turn-server cmd/turn internal/driver/qemu internal/turn internal/template internal/driver/gvisor \
	internal/store internal/server/controller internal/guest/agent internal/server/records)
ALL = $(shell $(GO) list ./... | grep -v -e /internal/kube/ -e /cmd/turn-operator -e /packaging/image)
LATER = $(ALONE) $(if $(ON_KVM),$(QEMU))
RACED = $(filter-out $(QEMU),$(LONGEST)) $(shell $(GO) list ./... | grep -v -e /internal/kube/ -e /cmd/turn-operator $(LATER:./%=-e /%$$))
CPUS := $(shell nproc)
MORE = $(shell echo $$(($(CPUS) + 1)))
TESTS = export $(SHARED:%'=%) -ldflags=-s'; test="$(GO) test -vet=off -timeout $(TIMEOUT)"; race="$$test -race -tags="

.PHONY: test
test: setup-tests shim check proto-check chart-check ## set up, build, and run every test once
	@set -x; failed=0; $(TESTS); \
	$(BROWSER) $$test -p $(MORE) -skip '^Test((Machine)?Script$$|Soak$$|MachineCorpus)' $(LONGEST) $(ALL) || failed=1; \
	$$test -parallel $(MORE) -run '^Test((Machine)?Script$$|MachineCorpus)' ./cmd/turn ./internal/bench/corpus || failed=1; \
	scripts/together \
		"TURN_SOAK_FOR=5m $$test -count 1 -run '^TestSoak$$' ./cmd/turn; \
		make operator; \
		$(BROWSER) scripts/test-suites" \
		"$$test $(KUBERNETES) ./packaging/image; \
		(cd shim && export CGO_ENABLED=0 && $(GO) vet ./... && $(GO) test -vet=off -timeout $(TIMEOUT) ./...)" || failed=1; \
	exit $$failed

.PHONY: test-again
test-again: setup-tests build ## run tests again: with the race detector, under KVM, on QEMU, as an ordinary user
	@set -x; $(TESTS); export GORACE=atexit_sleep_ms=10; \
	scripts/together \
		"$(BROWSER) $$race -p $(MORE) -skip '^Test((Machine)?Script$$|Soak$$|MachineCorpus)|$(SWEEPS)' $(RACED); \
		$$race -run '$(GOROUTINES)' $(COMPUTES)" \
		"scripts/test-kvm $(if $(AS_USER),--before-user); \
		TURN_SUBSTRATE=qemu $$test -run '^TestMachineScript$$/^$(ON_QEMU)$$' ./cmd/turn; \
		$(if $(ON_KVM),$$race -skip '$(GUEST)' $(QEMU);) \
		scripts/test-as-user"

.PHONY: race
race: setup-tests build ## run with the race detector what make test-again runs without it
	TURN_SOAK_TURNS=60 GORACE=atexit_sleep_ms=10 $(GO) test -vet=off -timeout $(TIMEOUT) -race -run '^Test(Script|Soak)$$|$(SWEEPS)' ./cmd/turn $(SWEPT)
	GORACE=atexit_sleep_ms=10 $(GO) test -vet=off -timeout $(TIMEOUT) -race $(ALONE)

.PHONY: soak
soak: setup-tests build ## run turns through a server with kills for SOAK_FOR (default 1h)
	TURN_SOAK_FOR=$(or $(SOAK_FOR),1h) $(GO) test -v -timeout 0 -count 1 -run '^TestSoak$$' ./cmd/turn
	TURN_SOAK_TURNS=$(or $(SOAK_TURNS),2000) $(GO) test -v -timeout 0 -count 1 -run '^TestSoak$$' ./cmd/turn

.PHONY: test-ui
test-ui: setup-tests ## run the tests of turn ui in Chromium, and check the types of its page
	$(BROWSER) $(GO) test -v -timeout $(TIMEOUT) -count 1 ./internal/ui/...
	scripts/test-suites ui

.PHONY: image
image: build operator ## build the OCI image bin/turnstone-image.tar, and print its digest
	@$(GO) run ./packaging/image --out bin/turnstone-image.tar $(if $(PUSH),--push $(PUSH))

.PHONY: node-image
node-image: setup build ## the same for nodes of a cluster: bin/turnstone-node-image.tar
	@$(GO) run ./packaging/image --node --mirror '$(TURN_DEBIAN_MIRROR)' --security-mirror '$(TURN_DEBIAN_SECURITY_MIRROR)' \
		--out bin/turnstone-node-image.tar $(if $(PUSH),--push $(PUSH))

.PHONY: chart-check
chart-check: ## lint the Helm chart, and compare packaging/kubernetes with it
	@$(SHARED) scripts/chart --check

.PHONY: cross
cross: ## build and vet the client for macOS and Windows
	GO=$(GO) scripts/cross

.PHONY: check
check: cross ## run go vet and gofmt, and build the clients
	$(SHARED) $(GO) vet ./...
	@unformatted=$$(find . -path ./.cache -prune -o -name '*.go' -print | xargs gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run gofmt -w:"; echo "$$unformatted"; exit 1; fi

.PHONY: proto
proto: ## check proto/, and generate internal/api and docs/api.md
	@GO=$(GO) scripts/proto

.PHONY: proto-check
proto-check:
	@$(SHARED) GO=$(GO) scripts/proto --check

.PHONY: short
short: build ## run the tests that start no machine
	$(SHARED) GORACE=atexit_sleep_ms=10 $(GO) test -vet=off -short ./...

.PHONY: bench
bench: setup-bench build ## measure speed and size; print markdown
	@mkdir -p .cache
	$(GO) build -trimpath -buildvcs=false -o .cache/bench ./internal/bench
	$(GO) test -c -trimpath -o .cache/floors/ ./internal/driver/gvisor ./internal/driver/qemu ./internal/driver/firecracker \
		./internal/server/gateway ./internal/server/node ./internal/server/node/warm ./internal/pool ./client ./internal/ui \
		./internal/fleet ./internal/fleet/sim ./internal/server/controller/usage
	@case ",$(or $(ONLY),kubernetes)," in *,kubernetes,*) \
		$(GO) build -trimpath -buildvcs=false -o .cache/kube-bench ./internal/kube/bench && \
		$(GO) build -trimpath -buildvcs=false -o .cache/turn-operator ./cmd/turn-operator && \
		.cache/kube-bench -bin bin -operator .cache/turn-operator;; esac
	@[ '$(ONLY)' = kubernetes ] || .cache/bench -turn bin/turn -floors .cache/floors $(if $(TEST_KERNEL),-kernel '$(TEST_KERNEL)') $(if $(ONLY),-only $(ONLY)) $(if $(RUNS),-runs $(RUNS)) $(if $(CORPUS),-groups $(CORPUS)) $(if $(TIER),-tier $(TIER))

.PHONY: fuzz
fuzz: build ## fuzz every decoder for FUZZTIME each (default 10s)
	@scripts/fuzz $(FUZZTIME)

.PHONY: lint
lint: build ## run staticcheck
	$(SHARED) $(GO) run $(STATICCHECK) ./...

.PHONY: clean
clean: ## remove built files; the state in TURN_HOME stays
	rm -rf bin .cache shim/pod/bin/podinit internal/guest/agentbin/bin/agent internal/guest/trace/bin/tracer.so internal/guest/process/bin/init

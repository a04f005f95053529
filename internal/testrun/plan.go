package main

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// longest are the packages whose tests take longest. They begin first, so that none of them runs alone at the end.
var longest = []string{"cmd/turn-server", "cmd/turn", "internal/driver/qemu", "internal/turn", "internal/template",
	"internal/driver/gvisor", "internal/store", "internal/server/controller", "internal/guest/agent",
	"internal/server/records"}

// The tests that are parts of their own: they start many sandboxes.
const (
	machineScript = "TestMachineScript"
	apart         = "^Test(MachineScript$|Script$|MachineCorpus|Soak$)"
)

// plan returns the parts of a target, in the order in which they begin.
func (s *settings) plan(ctx context.Context, target string) ([]part, error) {
	switch target {
	case "check":
		return s.checks("./..."), nil
	case "short":
		all := append(s.tested(), s.kubernetes()...)
		return []part{s.goTest("short", all, "-short", "-p", strconv.Itoa(2*s.cpus))}, nil
	case "test":
		changed := []string{"./..."}
		if s.base != "" {
			c, err := s.graph.changed(ctx, s.root, s.base)
			if err != nil {
				return nil, err
			}
			changed = folders(c.all())
		}
		return s.test(changed), nil
	case "again":
		return s.again(ctx)
	}
	return nil, fmt.Errorf("there is no target %q: check, short, test, again, busy", target)
}

// checks are what needs no test. staticcheck looks at these packages.
func (s *settings) checks(packages ...string) []part {
	all := []part{
		{name: "format", argv: []string{"scripts/format"}},
		{name: "vet", argv: []string{s.goTool, "vet", "./..."}},
		{name: "clients", argv: []string{"scripts/cross"}},
		{name: "definitions", argv: []string{"scripts/proto", "--check"}},
		{name: "chart", argv: []string{"scripts/chart", "--check"}},
	}
	if len(packages) > 0 {
		all = append(all, part{name: "staticcheck", argv: append([]string{"scripts/staticcheck"}, packages...)})
	}
	return all
}

// folders are the arguments of go that mean packages.
func folders(names []string) (args []string) {
	for _, n := range names {
		args = append(args, "./"+n)
	}
	return args
}

// test runs every test once. staticcheck, which looks again at all that imports a changed package, looks at the
// changed packages only; make check looks at all of them. What takes longest begins first; the scripts are in several
// parts, so that the end of a run is even. The packages of Kubernetes mostly wait, for an API server and its clients.
func (s *settings) test(changed []string) []part {
	packages := s.goTest("packages", s.tested(), "-p", strconv.Itoa(s.cpus+2), "-skip", apart) // some only wait
	packages.env = append(packages.env, "TURN_TEST_BROWSER=1")
	suites := part{name: "suites", argv: []string{"scripts/test-suites"}, env: []string{"TURN_TEST_BROWSER=1"},
		inputs: []string{"bin/turn", "bin/turn-server", "bin/runsc", "scripts", "sdk", "docs", "internal/ui/web",
			"internal/kube", "cmd/turn-operator", "examples/kubernetes", "wire/protocol.json", "internal/proof/testdata"}}
	all := []part{packages, suites, s.goTest("kubernetes", s.kubernetes(), "-p", strconv.Itoa(s.cpus))}
	all = append(append(all, s.checks(changed...)...), s.shim("shim", "./..."))
	for i, names := range []string{"^[r-z]", "^[^r-z]"} {
		tests := "^" + machineScript + "$/" + names
		if i == 0 {
			tests += "|^TestScript$"
		}
		all = append(all, s.goTest(fmt.Sprintf("scripts %d", i+1), []string{"cmd/turn"}, "-parallel", strconv.Itoa(s.cpus+2),
			"-run", tests))
	}
	return append(all, s.goTest("corpus", []string{"internal/bench/corpus"}, "-run", "^TestMachineCorpus"),
		s.goTest("soak", []string{"cmd/turn"}, "-run", "^TestSoak$"))
}

// again runs tests in other ways: under the race detector, under KVM, on QEMU without it, as an ordinary user, and
// sweeps to their end; and whole clusters. Of a change it runs the tests of the packages that it reaches, the sweeps of
// those that it changes, and clusters if it changes the operator or the shim.
func (s *settings) again(ctx context.Context) ([]part, error) {
	names, sweeps, clusters := s.tested(), s.sweeps(), true
	if !s.full {
		changed, err := s.graph.changed(ctx, s.root, s.base)
		if err != nil {
			return nil, err
		}
		reached := s.graph.reached(changed)
		clusters = changed.clusters
		names = slices.DeleteFunc(names, func(n string) bool { return !reached[n] })
		sweeps = slices.DeleteFunc(sweeps, func(n string) bool { return !slices.Contains(changed.all(), n) })
	}
	race, err := s.race(names)
	if err != nil {
		return nil, err
	}
	others, err := s.others(names)
	if err != nil {
		return nil, err
	}
	if len(sweeps) > 0 {
		long := s.goTest("sweeps", sweeps, "-p", strconv.Itoa(s.cpus), "-skip", apart)
		long.env = append(long.env, "TURN_TEST_FULL=1")
		race = append(race, long)
	}
	if s.full {
		full, err := s.tagged("full", names, "TURN_TEST_FULL=1")
		if err != nil {
			return nil, err
		}
		soak := s.goTest("soak", []string{"cmd/turn"}, "-run", "^TestSoak$")
		soak.env = append(soak.env, "TURN_SOAK_FOR=5m")
		race = append(append(race, full...), soak, part{name: "staticcheck", argv: []string{"scripts/staticcheck"}},
			part{name: "clients built", argv: []string{"scripts/cross", "--build"}},
			part{name: "full suites", argv: []string{"scripts/test-suites", "evidence", "e2b"}, env: []string{"TURN_TEST_FULL=1"}})
		releases := s.shim("shim, earlier containerds", "-run", "^TestReleases$", "./testbed")
		releases.env = append(releases.env, "TURN_TEST_FULL=1")
		others = append(others, releases)
	}
	if clusters {
		e2e := part{name: "kube-e2e", argv: []string{"make", "kube-e2e"}}
		if !s.full { // agent-sandbox's own tests have deadlines that mind a busy machine
			e2e.argv = append(e2e.argv, "ONLY=TestKubelet|TestOperator")
		}
		others = append(others, e2e)
	}
	return alternately(race, others), nil
}

// alternately returns the parts of both, by turns: what computes runs beside what waits for machines.
func alternately(a, b []part) (all []part) {
	for i := range max(len(a), len(b)) {
		all = append(append(all, a[min(i, len(a)):min(i+1, len(a))]...), b[min(i, len(b)):min(i+1, len(b))]...)
	}
	return all
}

// race runs what runs beside something else, with the race detector.
func (s *settings) race(names []string) (parts []part, err error) {
	whole, some, err := s.graph.raced(names)
	if err != nil {
		return nil, err
	}
	add := func(name string, packages []string, args ...string) {
		if len(packages) == 0 {
			return
		}
		p := s.goTest(name, packages, append([]string{"-race", "-tags=", "-p", strconv.Itoa(s.cpus)}, args...)...)
		// A program with the detector sleeps for a second before it exits, in which other goroutines may still
		// race; thousands of the tests' processes would sleep so for many minutes.
		p.env = append(p.env, "GORACE=atexit_sleep_ms=10", "TURN_TEST_HOST_ONLY=qemu")
		parts = append(parts, p)
	}
	add("race", whole, "-skip", apart)
	for i, g := range groups(some) {
		add(fmt.Sprintf("race of goroutines %d", i+1), g.names, "-skip", apart, "-run", "^("+strings.Join(g.tests, "|")+")$")
	}
	return parts, nil
}

// others runs tests with machines again in the ways that their tags name.
func (s *settings) others(names []string) (parts []part, err error) {
	if s.kernel != "" && s.kvm {
		for _, substrate := range s.accelerated() {
			of := slices.DeleteFunc(slices.Clone(names), func(n string) bool { // of another driver
				return strings.HasPrefix(n, "internal/driver/") && n != "internal/driver/"+substrate
			})
			kvm, err := s.tagged("kvm", of, "TURN_SUBSTRATE="+substrate, "TURN_KERNEL="+s.kernel, "TURN_TEST_KVM=1",
				"TURN_TEST_HOST_ONLY=qemu")
			if err != nil {
				return nil, err
			}
			parts = append(parts, kvm...)
		}
	}
	qemu, err := s.tagged("qemu", names, "TURN_SUBSTRATE=qemu")
	if err != nil {
		return nil, err
	}
	parts = append(parts, qemu...)
	if s.user {
		tests, scripts, err := s.graph.tagged(s.root, "user")
		if err != nil {
			return nil, err
		}
		argv := []string{"scripts/test-as-user"}
		for _, name := range names {
			argv = append(argv, selection(name, tests[name], scripts)...)
		}
		if len(argv) > 1 {
			parts = append(parts, part{name: "as a user", argv: argv})
		}
	}
	return parts, nil
}

// accelerated returns the substrates that use KVM and whose programs are there.
func (s *settings) accelerated() []string {
	if _, err := exec.LookPath("firecracker"); err != nil {
		return []string{"qemu"}
	}
	return []string{"qemu", "firecracker"}
}

// tagged runs the tests and scripts with a tag, with more variables.
func (s *settings) tagged(tag string, names []string, env ...string) (parts []part, err error) {
	tests, scripts, err := s.graph.tagged(s.root, tag)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		all := selection(name, tests[name], scripts)
		for i := 0; i < len(all); i += 2 {
			p := s.goTest(strings.TrimSpace(tag+" "+name), []string{name}, "-run", all[i+1])
			p.env = append(p.env, env...)
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// selection returns pairs of a package and a pattern of its tests: of scripts another one than of functions.
func selection(name string, tests, scripts []string) (pairs []string) {
	if len(tests) > 0 {
		pairs = append(pairs, name, "^("+strings.Join(tests, "|")+")$")
	}
	if name == "cmd/turn" && len(scripts) > 0 {
		pairs = append(pairs, name, "^"+machineScript+"$/^("+strings.Join(scripts, "|")+")$")
	}
	return pairs
}

// goTest is go test of packages, which are named below the module's root.
func (s *settings) goTest(name string, packages []string, args ...string) part {
	argv := append([]string{s.goTool, "test", "-json", "-vet=off", "-ldflags=-s", "-timeout=60m"}, args...)
	argv = append(argv, folders(packages)...)
	alone, total := len(packages) == 1, len(packages)
	if alone {
		total = 0
	}
	return part{name: name, argv: argv, tests: true, alone: alone, total: total, env: []string{"TURN_TEST_PROGRAMS=" + s.programs}}
}

// shim is go test in the module of the shim.
func (s *settings) shim(name string, args ...string) part {
	p := s.goTest(name, nil, args...)
	p.dir, p.env = "shim", append(p.env, "CGO_ENABLED=0")
	return p
}

// kube reports whether a package links the libraries of Kubernetes, which take minutes to compile.
func kube(name string) bool {
	return strings.HasPrefix(name, "internal/kube/") || name == "cmd/turn-operator" || name == "packaging/image"
}

func (s *settings) kubernetes() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.graph)), func(n string) bool { return !kube(n) || !s.graph[n].hasTests() })
}

// tested returns the packages with tests, except those of Kubernetes; the longest first.
func (s *settings) tested() []string {
	names := slices.Clone(longest)
	for _, n := range slices.Sorted(maps.Keys(s.graph)) {
		if s.graph[n].hasTests() && !kube(n) && !slices.Contains(longest, n) {
			names = append(names, n)
		}
	}
	return names
}

// sweeps returns the packages whose tests sweep.
func (s *settings) sweeps() []string {
	return slices.DeleteFunc(append(s.tested(), s.kubernetes()...), func(n string) bool {
		return !slices.Contains(slices.Concat(s.graph[n].TestImports, s.graph[n].XTestImports), module+"/internal/testsize")
	})
}

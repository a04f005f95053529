// Command bench measures the figures of docs/benchmarks.md: all in one run, because only ratios
// mean something on a noisy machine. It prints markdown.
//
//	go run ./internal/bench -build -only start
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/bench/storage"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
)

func main() {
	b := bench{sizes: fullSizes()}
	quick := flag.Bool("quick", false, "run all code with the smallest sizes; the figures mean nothing")
	flag.StringVar(&b.turn, "turn", "bin/turn", "the program to measure")
	flag.StringVar(&b.floors, "floors", ".cache/floors",
		"folder with the floors: gvisor.test, qemu.test and firecracker.test, the test binaries "+
			"of these packages below substrate")
	flag.StringVar(&b.substrate, "substrate", "auto",
		"the substrate to measure, except in the parts substrates and commit")
	flag.StringVar(&b.groups, "groups", "",
		"groups of the part determinism, separated by commas; default: all")
	flag.StringVar(&b.tierOnly, "tier", "", "tier of the part determinism; default: both")
	flag.StringVar(&b.only, "only", "", "parts to measure, separated by commas; default: all except determinism")
	flag.StringVar(&b.kernel, "kernel", "",
		"a guest kernel for tests, for the part substrates where KVM runs no stock kernel")
	build := flag.Bool("build", false, "first build the floors of the checkout in the working directory")
	b.addFlags()
	c := comparison{b: &b}
	c.addFlags()
	flag.Parse()
	if *quick {
		b.sizes = quickSizes()
		flag.Parse() // sizes that flags give have precedence
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := b.known()
	if err == nil && *build {
		err = buildFloors(ctx, ".", b.floors, b.needed())
	}
	if err == nil && c.base != "" {
		err = c.run(ctx, os.Stdout)
	} else if err == nil {
		err = b.runParts(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	sizes
	turn, floors     string
	only, substrate  string
	groups, tierOnly string
	kernel, accel    string // accel of the QEMU whose floor is measured
	dir              string

	home      *statedir.Dir
	template  *turnstone.Template // the template base
	isolation string              // isolation of the substrate
	peer      *peer               // the peer of the part substrates
}

// A part is one of the measurements that -only selects.
type part struct {
	name   string
	turn   bool // it needs a machine
	run    func(context.Context) error
	floors []string // packages below internal whose test binaries it runs
}

// parts returns all parts, in the order of a run.
func (b *bench) parts() []part {
	const gvisor, qemu, firecracker = "driver/gvisor", "driver/qemu", "driver/firecracker"
	const node, gateway, warm = "server/node", "server/gateway", "server/node/warm"
	return []part{{"substrates", true, b.substrates, []string{gvisor, qemu}},
		{"kvm", true, b.underKVM, []string{qemu, firecracker}}, {"start", true, b.start, []string{gvisor, qemu}},
		{"memory", true, b.memory, nil}, {"streaming", true, b.streaming, nil}, {"wire", true, b.wire, []string{qemu}},
		{"shell", true, b.shell, nil}, {"forks", true, b.forks, nil},
		{"commit", false, func(ctx context.Context) error { return storage.Measure(ctx, b.dir, b.divide) }, nil},
		{"keys", true, b.keys, nil}, {"history", true, b.history, nil}, {"proof", true, b.proof, nil},
		{"server", true, b.server, []string{node, gateway}}, {"sdk", true, b.sdk, []string{"../client"}},
		{"ui", false, b.ui, []string{"ui"}}, {"turns", true, b.turns, nil},
		{"pool", true, b.pool, []string{warm, node, gateway, "pool"}},
		{"fleet", false, b.fleet, []string{"fleet", "fleet/sim", "server/controller/usage"}},
		{"determinism", true, b.corpus, nil}}
}

// selected reports whether -only selects a part.
func (b *bench) selected(name string) bool {
	if b.only == "" {
		return name != "determinism" // it takes hours
	}
	only := strings.Split(b.only, ",")
	return slices.Contains(only, name) || name == "kvm" && slices.Contains(only, "substrates")
}

func (b *bench) runParts(ctx context.Context) error {
	var err error
	if b.dir, err = os.MkdirTemp("", "turn-bench-*"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	if b.quick() {
		fmt.Print("A quick run: the smallest sizes, without what takes seconds: restore, fork and most scripts on " +
			"QEMU, the strict tier, the page's large session, a second set of files for other programs. " +
			"The figures mean nothing.\n\n")
	}
	prepared := false
	for _, part := range b.parts() {
		if !b.selected(part.name) {
			continue
		}
		if part.turn && !prepared {
			if err := b.prepare(ctx); err != nil {
				return err
			}
			prepared = true
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// known returns an error if -only names a part that does not exist.
func (b *bench) known() error {
	if b.only == "" {
		return nil
	}
	var names []string
	for _, part := range b.parts() {
		names = append(names, part.name)
	}
	for _, name := range strings.Split(b.only, ",") {
		if name != "kubernetes" && !slices.Contains(names, name) { // which another program measures
			return fmt.Errorf("there is no part %q: the parts are %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

// run runs `turn run` on doc, with more arguments, and returns the duration of the process.
// started, if it is not nil, is called with the process's ID.
func (b *bench) run(ctx context.Context, doc string, started func(pid int),
	args ...string) (*turnstone.TurnReport, time.Duration, error) {
	return b.runWith(ctx, nil, doc, started, args...)
}

// runWith is run with more environment variables.
func (b *bench) runWith(ctx context.Context, env []string, doc string, started func(pid int),
	args ...string) (*turnstone.TurnReport, time.Duration, error) {
	path := filepath.Join(b.dir, "doc.md")
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
		return nil, 0, err
	}
	cmd := exec.CommandContext(ctx, b.turn,
		append([]string{"run", "--json", "-q", path}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	if started != nil {
		started(cmd.Process.Pid)
	}
	if err := cmd.Wait(); err != nil {
		return nil, 0, fmt.Errorf("turn run: %w: %s", err, errOut.String())
	}
	took := time.Since(began)
	var t turnstone.TurnReport
	return &t, took, json.Unmarshal(out.Bytes(), &t)
}

// peakMemory reads a process's high-water mark until the process has ended. The result of wait4(2)
// would include QEMU.
func peakMemory(pid int) (peak string) {
	for ; ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, rest, ok := strings.Cut(string(b), "VmHWM:")
		if err != nil || !ok {
			return peak
		}
		line, _, _ := strings.Cut(rest, "\n")
		peak = strings.TrimSpace(line)
	}
}

func step(script string) string { return "```bash\n" + script + "\n```\n" }

// prepare finds the requirements of the turns, and builds missing ones.
func (b *bench) prepare(ctx context.Context) error {
	// turn looks for runsc beside itself; this program is elsewhere
	if os.Getenv("TURN_RUNSC") == "" {
		path, err := filepath.Abs(filepath.Join(filepath.Dir(b.turn), "runsc"))
		if err != nil {
			return err
		}
		if err := os.Setenv("TURN_RUNSC", path); err != nil {
			return err
		}
	}
	if err := os.Setenv("TURN_SUBSTRATE", b.substrate); err != nil {
		return err
	}
	t, _, err := b.run(ctx, step("true"), nil)
	if err != nil {
		return err
	}
	b.substrate, b.isolation = t.Substrate, t.Isolation
	b.accel = accelOf(b.isolation)
	if err := os.Setenv("TURN_SUBSTRATE", b.substrate); err != nil {
		return err
	}
	if b.home, err = statedir.Open(os.Getenv("TURN_HOME")); err != nil {
		return err
	}
	b.template, err = template.NewStore(b.home.Path("templates")).Ensure(ctx, executor.DefaultImage,
		func(string) {})
	return err
}

// options returns the options that turn would read from the environment.
func (b *bench) options() executor.Options {
	return executor.Options{Dir: b.home.Root, AgentFile: os.Getenv("TURN_AGENT"),
		Runsc:       os.Getenv("TURN_RUNSC"),
		Firecracker: os.Getenv("TURN_FIRECRACKER"), Jailer: os.Getenv("TURN_JAILER"),
		Kernel: os.Getenv("TURN_KERNEL"), KernelModules: os.Getenv("TURN_KERNEL_MODULES")}
}

// create creates a sandbox in this process.
func (b *bench) create(ctx context.Context,
	req executor.SandboxRequest) (*executor.Sandbox, error) {
	x, err := executor.Open(ctx, b.options())
	if err != nil {
		return nil, err
	}
	return x.Create(ctx, req, nil)
}

// on returns the substrate's part of a heading.
func (b *bench) on() string {
	if strings.HasPrefix(b.isolation, b.substrate) {
		return fmt.Sprintf(" (%s)", b.isolation)
	}
	return fmt.Sprintf(" (%s, %s)", b.substrate, b.isolation)
}

func quantile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, len(s)*p/100)]
}

func ratio(a, b []time.Duration, p int) float64 {
	return float64(quantile(a, p)) / float64(quantile(b, p))
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

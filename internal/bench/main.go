// Command bench measures the figures of docs/benchmarks.md: all in one run, because only ratios
// mean something on a noisy machine. It prints markdown.
//
//	go run ./internal/bench -turn bin/turn -floors bin/floors
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/bench/storage"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
)

func main() {
	b := bench{state: 10 << 30}
	flag.StringVar(&b.turn, "turn", "bin/turn", "the program to measure")
	flag.StringVar(&b.floors, "floors", ".cache/floors",
		"folder with the floors: gvisor.test, qemu.test and firecracker.test, the test binaries "+
			"of these packages below substrate")
	flag.StringVar(&b.substrate, "substrate", "auto",
		"the substrate to measure, except in the parts substrates and commit")
	flag.IntVar(&b.runs, "runs", 20, "runs of each start")
	flag.StringVar(&b.stream, "stream", "1G", "size of the streaming step's output")
	flag.Func("state", "size of the files of all turns of the history part (default 10G)",
		func(s string) (err error) {
			b.state, err = turnstone.ParseBytes(s)
			return err
		})
	flag.IntVar(&b.depth, "depth", 500, "number of turns of the history part")
	flag.IntVar(&b.clones, "forks", 100, "number of clones of the part forks")
	flag.StringVar(&b.groups, "groups", "",
		"groups of the part determinism, separated by commas; default: all")
	flag.StringVar(&b.tierOnly, "tier", "", "tier of the part determinism; default: both")
	flag.StringVar(&b.only, "only", "", "parts to measure, separated by commas; default: all except determinism")
	flag.StringVar(&b.kernel, "kernel", "",
		"a guest kernel for tests, for the part substrates where KVM runs no stock kernel")
	flag.Parse()
	if err := b.runParts(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	turn, floors, stream string
	only, substrate      string
	groups, tierOnly     string
	kernel, accel        string // accel of the QEMU whose floor is measured; empty: any
	state                turnstone.Bytes
	runs, depth, clones  int
	dir                  string

	home      *statedir.Dir
	template  *turnstone.Template // the template base
	isolation string              // isolation of the substrate
	peer      *peer               // the peer of the part substrates
}

func (b *bench) runParts(ctx context.Context) error {
	var err error
	if b.dir, err = os.MkdirTemp("", "turn-bench-*"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	prepared := false
	for _, part := range []struct {
		name string
		turn bool // it needs a machine
		run  func(context.Context) error
	}{{"substrates", true, b.substrates}, {"kvm", true, b.underKVM}, {"start", true, b.start},
		{"memory", true, b.memory}, {"streaming", true, b.streaming}, {"wire", true, b.wire},
		{"shell", true, b.shell}, {"forks", true, b.forks},
		{"commit", false, func(ctx context.Context) error { return storage.Measure(ctx, b.dir) }},
		{"keys", true, b.keys},
		{"history", true, b.history}, {"proof", true, b.proof}, {"server", true, b.server}, {"sdk", true, b.sdk},
		{"ui", false, b.ui},
		{"turns", true, b.turns}, {"pool", true, b.pool}, {"fleet", false, b.fleet},
		{"determinism", true, b.corpus}} {
		if b.only == "" && part.name == "determinism" {
			continue // it takes hours
		}
		if b.only != "" && !slices.Contains(strings.Split(b.only, ","), part.name) &&
			!(part.name == "kvm" && slices.Contains(strings.Split(b.only, ","), "substrates")) {
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

func field(s string) string {
	_, v, _ := strings.Cut(s, ":")
	return strings.Join(strings.Fields(v), " ")
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

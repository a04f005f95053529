// Command bench measures what docs/benchmarks.md reports: all in one run, because
// only ratios mean something on a noisy machine. It prints markdown.
//
//	go run ./bench -turn bin/turn -floor bin/floor
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
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/template"
)

func main() {
	b := bench{state: 10 << 30}
	flag.StringVar(&b.turn, "turn", "bin/turn", "the program to measure")
	flag.StringVar(&b.floor, "floor", "bin/floor", "the floor: the test binary of package substrate/qemu")
	flag.IntVar(&b.runs, "runs", 20, "runs of each start")
	flag.StringVar(&b.stream, "stream", "1G", "how much the streaming step prints")
	flag.Func("state", "how much the turns of the history part write in all (default 10G)", func(s string) (err error) {
		b.state, err = turnstone.ParseBytes(s)
		return err
	})
	flag.IntVar(&b.depth, "depth", 500, "turns of the history part")
	flag.StringVar(&b.only, "only", "", "parts to measure, with commas; all by default")
	flag.Parse()
	if err := b.all(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type bench struct {
	turn, floor, stream string
	only                string
	state               turnstone.Bytes
	runs, depth         int
	dir, root           string
}

func (b *bench) all(ctx context.Context) error {
	var err error
	if b.dir, err = os.MkdirTemp("", "turn-bench-*"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	prepared := false
	for _, part := range []struct {
		name string
		turn bool // it takes a machine
		run  func(context.Context) error
	}{{"start", true, b.start}, {"memory", true, b.memory}, {"streaming", true, b.streaming}, {"wire", true, b.wire},
		{"shell", true, b.shell}, {"forks", true, b.forks}, {"parsing", false, b.parsing}, {"commit", false, b.commit}, {"history", true, b.history}} {
		if b.only != "" && !slices.Contains(strings.Split(b.only, ","), part.name) {
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

// run runs `turn run` on doc and returns how long the process took and, if it is
// watched, the most memory it had.
func (b *bench) run(ctx context.Context, doc string, watch bool) (*executor.Turn, time.Duration, string, error) {
	path := filepath.Join(b.dir, "doc.md")
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
		return nil, 0, "", err
	}
	cmd := exec.CommandContext(ctx, b.turn, "run", "--json", "-q", path)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, 0, "", err
	}
	peak := make(chan string, 1)
	if watch {
		go func() { peak <- peakMemory(cmd.Process.Pid) }()
	} else {
		peak <- ""
	}
	err := cmd.Wait()
	took := time.Since(began)
	if err != nil {
		return nil, 0, "", fmt.Errorf("turn run: %w: %s", err, errOut.String())
	}
	var t executor.Turn
	err = json.Unmarshal(out.Bytes(), &t)
	return &t, took, <-peak, err
}

// peakMemory reads a process's high-water mark until the process is gone. What
// wait4(2) tells would count QEMU in.
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

// prepare builds what is missing.
func (b *bench) prepare(ctx context.Context) error {
	if _, _, _, err := b.run(ctx, step("true"), false); err != nil {
		return err
	}
	h, err := home.Open()
	if err != nil {
		return err
	}
	tmpl, err := template.NewStore(h.Path("templates")).Ensure(ctx, executor.DefaultImage, func(string) {})
	if err != nil {
		return err
	}
	b.root = tmpl.Root
	return nil
}

func (b *bench) start(ctx context.Context) error {
	var floors, turns []time.Duration
	phases := map[string][]time.Duration{}
	var names []string
	for range b.runs {
		began := time.Now()
		if out, err := b.floorCommand(ctx, "floor").CombinedOutput(); err != nil {
			return fmt.Errorf("floor: %w: %s", err, out)
		}
		floors = append(floors, time.Since(began))
		t, took, _, err := b.run(ctx, step("true"), false)
		if err != nil {
			return err
		}
		turns = append(turns, took)
		rest := took
		for _, p := range t.Phases {
			d := time.Duration(p.Micros) * time.Microsecond
			if phases[p.Name] == nil {
				names = append(names, p.Name)
			}
			phases[p.Name] = append(phases[p.Name], d)
			rest -= d
		}
		phases["process"] = append(phases["process"], rest)
	}
	fmt.Printf("## Start\n\n| | p50 | p99 |\n|---|---|---|\n")
	fmt.Printf("| floor: QEMU on the snapshot, until `bash -c true` has run | %s | %s |\n", ms(quantile(floors, 50)), ms(quantile(floors, 99)))
	fmt.Printf("| `turn run` of one step `true`, the whole process | %s | %s |\n", ms(quantile(turns, 50)), ms(quantile(turns, 99)))
	fmt.Printf("| ratio | %.2f | %.2f |\n\n", ratio(turns, floors, 50), ratio(turns, floors, 99))
	fmt.Printf("| phase of `turn run` | p50 | p99 |\n|---|---|---|\n")
	for _, name := range append(names, "process") {
		fmt.Printf("| %s | %s | %s |\n", name, ms(quantile(phases[name], 50)), ms(quantile(phases[name], 99)))
	}
	fmt.Println()
	return nil
}

// floorCommand runs the floor program in one of its modes on the same home.
func (b *bench) floorCommand(ctx context.Context, mode string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.floor)
	cmd.Env = append(os.Environ(), "TURNSTONE_BENCH="+mode, "TURNSTONE_BENCH_ROOT="+b.root)
	return cmd
}

func (b *bench) memory(ctx context.Context) error {
	out, err := b.floorCommand(ctx, "memory").Output()
	if err != nil {
		return fmt.Errorf("memory: %w: %s", err, out)
	}
	fmt.Printf("## Memory of a clone\n\n%s\n", out)
	return nil
}

func (b *bench) streaming(ctx context.Context) error {
	t, took, peak, err := b.run(ctx, step("grep VmHWM /proc/1/status")+step("head -c "+b.stream+" /dev/zero")+
		step("grep VmHWM /proc/1/status"), true)
	if err != nil {
		return err
	}
	s := t.Steps[1]
	bytesOut := s.StdoutInfo.Bytes
	fmt.Printf("## Streaming\n\n| | |\n|---|---|\n| standard output of one step | %d bytes, %s |\n", bytesOut, s.StdoutInfo.Digest)
	fmt.Printf("| time of that step | %s (%.0f MB/s) |\n", ms(time.Duration(s.Millis)*time.Millisecond), float64(bytesOut)/1e6/(float64(s.Millis)/1e3))
	fmt.Printf("| whole turn | %s |\n", ms(took))
	fmt.Printf("| peak memory of `turn` (QEMU not counted) | %s |\n", peak)
	fmt.Printf("| peak memory of the agent, before and after | %s, %s |\n\n", field(t.Steps[0].Stdout), field(t.Steps[2].Stdout))
	return nil
}

func field(s string) string {
	_, v, _ := strings.Cut(s, ":")
	return strings.Join(strings.Fields(v), " ")
}

func quantile(d []time.Duration, p int) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, len(s)*p/100)]
}

func ratio(a, b []time.Duration, p int) float64 {
	return float64(quantile(a, p)) / float64(quantile(b, p))
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

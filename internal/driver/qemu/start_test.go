package qemu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
)

// BenchmarkStart starts machines on stacks of several depths until bash has run true, and then
// freezes their disks. cpu is QEMU's processor time when the machine is configured. The depths
// alternate, so that a busy host slows all of them.
func BenchmarkStart(b *testing.B) {
	h := turntest.Home(b)
	m := turntest.Machine(b, h, "base")
	s, err := New(b.Context(), h, Options{Probe: &m})
	if err != nil {
		b.Fatal(err)
	}
	depths := []int{0, 1, 4, substrate.MaxLayers}
	if os.Getenv("TURNSTONE_BENCH_DEPTHS") == "0" {
		depths = depths[:1]
	}
	phases := []string{"restore", "configure", "true", "freeze", "cpu"}
	took := make([][][]time.Duration, len(depths))
	for i := range depths {
		took[i] = make([][]time.Duration, len(phases))
	}
	machines := make([]substrate.Machine, len(depths))
	for i, depth := range depths {
		machines[i] = m
		if depth > 0 {
			machines[i].Layers = substratetest.Layers(b, depth)
		}
	}
	for b.Loop() {
		for i := range depths {
			for phase, d := range startTrue(b.Context(), b, s, machines[i]) {
				took[i][phase] = append(took[i][phase], d)
			}
		}
	}
	for i, depth := range depths {
		total := time.Duration(0)
		for phase, name := range phases {
			slices.Sort(took[i][phase])
			p50 := took[i][phase][len(took[i][phase])/2]
			if phase < 3 { // freeze comes at a turn's end
				total += p50
			}
			b.ReportMetric(float64(p50.Microseconds())/1000, fmt.Sprintf("ms-%s/%d", name, depth))
		}
		b.ReportMetric(float64(total.Microseconds())/1000, fmt.Sprintf("ms-all/%d", depth))
	}
}

// BenchmarkWall restores machines with and without QEMU's jail, alternately.
func BenchmarkWall(b *testing.B) {
	h := turntest.Home(b)
	m := turntest.Machine(b, h, "base")
	s, err := New(b.Context(), h, Options{Probe: &m})
	if err != nil {
		b.Fatal(err)
	}
	took := map[host.Wall][]time.Duration{}
	for b.Loop() {
		for _, w := range []host.Wall{jailed, filtered, open} {
			s.wall.Wall = w
			begin := time.Now()
			vm, err := s.Restore(b.Context(), m)
			if err != nil {
				b.Fatal(err)
			}
			took[w] = append(took[w], time.Since(begin))
			_ = vm.Close()
		}
	}
	for w, all := range took {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-"+string(w))
	}
}

func startTrue(ctx context.Context, b *testing.B, s *Substrate,
	m substrate.Machine) [5]time.Duration {
	b.Helper()
	begin := time.Now()
	vm, err := s.Restore(ctx, m)
	if err != nil {
		b.Fatal(err)
	}
	restored := time.Now()
	client, link, err := substratetest.Configure(ctx, vm, m, &guestNetwork)
	if err != nil {
		b.Fatal(err)
	}
	configured := time.Now()
	cpu := processorTime(vm.(*machine).PID())
	out, exit := substratetest.Shell(b, client, "true")
	if exit.ExitCode != 0 {
		b.Fatal(out)
	}
	end := time.Now()
	if _, err := client.StateFreeze(ctx); err != nil {
		b.Fatal(err)
	}
	frozen := time.Now()
	_ = client.Close()
	_ = link.Close()
	_ = vm.Close()
	return [5]time.Duration{restored.Sub(begin), configured.Sub(restored), end.Sub(configured),
		frozen.Sub(end), cpu}
}

// processorTime returns a process's processor time, which a busy host changes little.
func processorTime(pid int) (total time.Duration) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var ns int64
		if _, err := fmt.Sscan(string(b), &ns); err == nil {
			total += time.Duration(ns)
		}
	}
	return total
}

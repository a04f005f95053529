package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// Compare the following starts with each other, on an idle machine: `go test
// ./internal/driver/gvisor -run '^$' -bench Start -benchtime 20x`.

// BenchmarkStartDo is gVisor's own shortest start: a program on the host's files.
func BenchmarkStartDo(b *testing.B) {
	s := newSubstrate(b, turntest.Home(b))
	dir := b.TempDir()
	for b.Loop() {
		cmd := s.command(dir, "do", "--quiet", "true")
		cmd.Stdin = strings.NewReader("") // root's runsc would give /dev/null to the sandbox's user
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
}

// BenchmarkStartBareRestore restores a turn's checkpoint with runsc alone, until runsc says that
// the sandbox runs. The agent is not contacted.
func BenchmarkStartBareRestore(b *testing.B) {
	h := turntest.Home(b)
	s, m := newSubstrate(b, h), testMachine(b, h)
	ctx := b.Context()
	id, err := s.identity(m)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		in, err := s.openImages(ctx, m)
		if err == nil {
			in.checkpoint, err = s.ensureSnapshot(ctx, m, id)
		}
		if err != nil {
			b.Fatal(err)
		}
		dir := b.TempDir()
		config, err := spec(dir, in.paths(), m.Shape)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
		}
		if err == nil {
			err = in.linkCheckpoint(dir)
		}
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		// Detached, runsc ends as soon as the sandbox runs.
		cmd := s.command(dir, "restore", "--detach", "--bundle="+dir, "--pid-file="+pidFile,
			"--image-path="+checkpointDir, "bare")
		cmd.ExtraFiles = in.list()
		r, w, err := os.Pipe() // not /dev/null, which root's runsc would give to the sandbox's user
		if err != nil {
			b.Fatal(err)
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = r, w, w
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_, _ = r.Close(), w.Close()
		in.close()
		_ = s.command(dir, "delete", "--force", "bare").Run()
		b.StartTimer()
	}
}

// BenchmarkStartTrue measures a turn: restore, configure, run true.
func BenchmarkStartTrue(b *testing.B) {
	h := turntest.Home(b)
	s, m := newSubstrate(b, h), testMachine(b, h)
	var restore, configure, run time.Duration
	for b.Loop() {
		at := time.Now()
		lap := func(d *time.Duration) {
			now := time.Now()
			*d += now.Sub(at)
			at = now
		}
		vm, err := s.Restore(b.Context(), m)
		if err != nil {
			b.Fatal(err)
		}
		lap(&restore)
		client, link, err := substratetest.Configure(b.Context(), vm, m, nil)
		if err != nil {
			b.Fatal(err, vm.Err())
		}
		lap(&configure)
		end, err := client.Start(b.Context(),
			wire.ProcessStartParams{Argv: []string{"bash", "-c", "true"}}, wire.Stdio{})
		if err != nil || end.Exit.ExitCode != 0 {
			b.Fatal(end, err)
		}
		lap(&run)
		b.StopTimer()
		_, _, _ = vm.Close(), client.Close(), link.Close()
		b.StartTimer()
	}
	for what, d := range map[string]time.Duration{"restore": restore, "configure": configure,
		"true": run} {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), what+"-ms/op")
	}
}

// BenchmarkClose measures the end of a sandbox, until nothing of it is left.
func BenchmarkClose(b *testing.B) {
	h := turntest.Home(b)
	s, m := newSubstrate(b, h), testMachine(b, h)
	for b.Loop() {
		b.StopTimer()
		vm := started(b, s, m)
		b.StartTimer()
		if err := vm.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// started returns a sandbox whose agent has answered.
func started(t testing.TB, s *Substrate, m substrate.Machine) *sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	vm, err := s.Restore(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	client, link, err := substratetest.Configure(ctx, vm, m, nil)
	if err != nil {
		t.Fatal(err, vm.Err())
	}
	t.Cleanup(func() { _, _, _ = vm.Close(), client.Close(), link.Close() })
	return vm.(*sandbox)
}

// TestMemory prints the memory of configured clones; it cannot fail on a number, which depends on
// the host.
//
//testrun:user
func TestMemory(t *testing.T) {
	if os.Getenv("TURNSTONE_MEASURE") == "" {
		t.Skip("TURNSTONE_MEASURE is not set")
	}
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	var clones []*sandbox
	for range 3 {
		clones = append(clones, started(t, s, m))
	}
	for i, v := range clones {
		pid, err := processID(v.dir)
		check(t, err)
		for what, pid := range map[string]int{"runsc": v.PID(), "sandbox": pid} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
			check(t, err)
			for _, field := range []string{"Pss:", "Pss_Anon:", "Pss_Shmem:"} {
				n, err := statusField(string(b), field)
				check(t, err)
				t.Logf("clone %d: %s %s %d KiB", i, what, field, n)
			}
		}
	}
}

// BenchmarkDeterministic compares deterministic sandboxes with others.
func BenchmarkDeterministic(b *testing.B) {
	h := turntest.Home(b)
	s, m := newSubstrate(b, h), testMachine(b, h)
	m.Shape.CPUs, m.Shape.Network = 1, false
	for name, script := range map[string]string{
		"cpu":      "i=0; while [ $i -lt 50000 ]; do i=$((i + 1)); done",
		"commands": "for i in {1..50}; do /bin/true; done",
		"calls":    "dd if=/dev/zero of=/dev/null bs=1 count=30000 2>/dev/null",
		"pipe":     "yes | head -c 5000000 | tr y z | wc -c",
	} {
		for _, d := range []*substrate.Determinism{nil, {Clock: time.Unix(1767225600, 0)}} {
			m.Determinism = d
			b.Run(fmt.Sprintf("%s/deterministic=%t", name, d != nil), func(b *testing.B) {
				vm, err := s.Restore(b.Context(), m)
				if err != nil {
					b.Fatal(err)
				}
				defer vm.Close()
				client, link, err := substratetest.Configure(b.Context(), vm, m, nil)
				if err != nil {
					b.Fatal(err)
				}
				defer link.Close()
				defer client.Close()
				for b.Loop() {
					if out, exit := substratetest.Shell(b, client, script); exit.ExitCode != 0 {
						b.Fatal(out)
					}
				}
			})
		}
	}
}

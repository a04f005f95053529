package gvisor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate/substratetest"
	"turnstone.dev/turnstone/wire"
)

// TestCPUs checks that a sandbox sees its number of CPUs, and that gVisor's kernel has at least two
// threads of its own: with a single thread, each system call in a sandbox of one CPU costs switches
// of the host's scheduler. Only runsc's log has the number of threads.
//
//testrun:user
func TestCPUs(t *testing.T) {
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	logs := t.TempDir()
	wrapper := filepath.Join(t.TempDir(), binaryName)
	check(t, os.WriteFile(wrapper,
		fmt.Appendf(nil, "#!/bin/sh\nexec %q --debug --debug-log=%q \"$@\"\n", s.binary, logs+"/"),
		0o755))
	s.binary = wrapper
	for _, cpus := range []int{1, 3} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		m.Shape.CPUs = cpus
		vm, err := s.Restore(ctx, m)
		check(t, err)
		defer func() { _ = vm.Close() }()
		client, link, err := substratetest.Configure(ctx, vm, m, nil)
		check(t, err)
		defer func() { _, _ = client.Close(), link.Close() }()
		var out bytes.Buffer
		end, err := client.Start(ctx, wire.ProcessStartParams{Argv: []string{"nproc"}},
			wire.Stdio{Out: &out})
		if seen := strings.TrimSpace(out.String()); err != nil || end.Exit.ExitCode != 0 ||
			seen != fmt.Sprint(cpus) {
			t.Errorf("with %d CPUs it sees %q: %+v, %v", cpus, seen, end, err)
		}
		boots, _ := filepath.Glob(filepath.Join(logs, "*boot*"))
		for _, path := range boots {
			text, err := os.ReadFile(path)
			check(t, err)
			check(t, os.Remove(path))
			// The later lines are temporary values for readers of files.
			_, text, _ = bytes.Cut(text, []byte("Setting GOMAXPROCS to "))
			threads, _, _ := bytes.Cut(text, []byte("\n"))
			if want := max(cpus, min(2, runtime.NumCPU())); string(threads) != fmt.Sprint(want) {
				t.Errorf("with %d CPUs the kernel has %q threads, not %d", cpus, threads, want)
			}
		}
		if len(boots) == 0 {
			t.Error("runsc wrote no log")
		}
	}
}

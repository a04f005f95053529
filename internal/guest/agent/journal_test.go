package agent

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone/wire"
)

// TestEnableLeavesNothing checks that a connection that enables the journal again and again does
// not make the agent grow.
func TestEnableLeavesNothing(t *testing.T) {
	h := newHarness(t)
	if err := h.TraceDisable(t.Context()); err != nil {
		t.Fatal(err)
	}
	var c *wire.Conn
	h.a.mu.Lock()
	for c = range h.a.clients {
	}
	h.a.mu.Unlock()
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	goroutines := runtime.NumGoroutine()
	loop := func(n int) {
		for range n {
			_ = h.a.journal.Enable(t.Context(), c)
			_ = h.a.journal.Disable(t.Context(), c)
		}
		waitFor(t, "the followers to end",
			func() bool { return runtime.NumGoroutine() <= goroutines })
	}
	// The runtime keeps memory for concurrent goroutines, whose number depends on the scheduler: a
	// leak grows each time.
	var grown []int64
	loop(2000)
	for range 5 {
		before := heap()
		loop(10_000)
		grown = append(grown, int64(heap())-int64(before))
	}
	if slices.Min(grown) > 256<<10 {
		t.Errorf("the heap grew each time: %v", grown)
	}
}

// TestNoProcInRoot checks that a step whose root has no /proc runs untraced, with the prelude.
func TestNoProcInRoot(t *testing.T) {
	tracing := NewTracing()
	defer tracing.Close()
	if err := tracing.check(bashPath); err != nil {
		t.Skipf("no tracer: %v", err)
	}
	root := t.TempDir()
	bash, err := os.ReadFile(bashPath)
	if err == nil {
		err = os.Mkdir(filepath.Join(root, "bin"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(root, bashPath), bash, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		root   string
		traced bool
	}{{root, false}, {"/", true}} {
		a, err := New(Options{Chroot: tt.root, RunDir: t.TempDir(), Tracing: tracing})
		if err != nil {
			t.Fatal(err)
		}
		rec := a.shell.recorder("bash", defaultEnv())
		rep := rec.Finish(0)
		if rec.captures() != tt.traced || !tt.traced && !strings.Contains(rep.Untraced, "/proc") {
			t.Errorf("in %s: traced is %v, %q", tt.root, rec.captures(), rep.Untraced)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

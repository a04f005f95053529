package pod

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/wire"
)

// FuzzAnswers checks that what a hostile sandbox answers is bounded and harmless.
func FuzzAnswers(f *testing.F) {
	f.Add(`{"cpu":1,"memory":2}`)
	f.Add("\x1b[2Jboo\xff\n")
	f.Fuzz(func(t *testing.T, text string) {
		var l limited
		_, _ = l.Write([]byte(text))
		if l.Len() > guest.MaxStats {
			t.Errorf("%d bytes", l.Len())
		}
		_, _ = parseStats(l.String())
		if p := printable(text); len(p) > 500 || strings.ContainsAny(p, "\x1b\n\x00") {
			t.Errorf("%q", p)
		}
	})
}

func TestProcessName(t *testing.T) {
	long := strings.Repeat("a", 64)
	if name := processName(long, long); len(name) > 64 || name == processName(long, "") {
		t.Error(name)
	}
}

// TestBounded checks that a caller does not wait for a sandbox that never answers.
func TestBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	never := make(chan struct{})
	defer close(never)
	time.AfterFunc(time.Millisecond, cancel) //wait: any moment is right
	_, err := bounded(ctx, func() (int, error) { <-never; return 1, nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p := &Pod{helpers: make(chan struct{}, 1)}
	p.helpers <- struct{}{}
	if _, err := p.helper(ctx, nil, "stats"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n, err := bounded(t.Context(), func() (int, error) { return 1, nil }); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// TestLanes checks that processes use connections of their own, and at most so many.
func TestLanes(t *testing.T) {
	opened := 0
	ls := lanes{open: func() (*wire.Client, error) { opened++; return nil, nil }}
	var last *lane
	for i := range maxProcesses {
		l, err := ls.take()
		if err != nil || l.used > laneSize {
			t.Fatalf("process %d: %v", i, err)
		}
		last = l
	}
	if _, err := ls.take(); turnstone.KindOf(err) != turnstone.KindExhausted {
		t.Errorf("one more: %v", err)
	}
	ls.give(last)
	if l, err := ls.take(); err != nil || l != last || opened != maxProcesses/laneSize {
		t.Errorf("after an end: %v; %d connections", err, opened)
	}
}

// TestVolumes checks that a volume that the sandbox does not take blocks nobody for longer than its
// caller waits, and that a container's own volumes end with it.
func TestVolumes(t *testing.T) {
	v := &volume{dir: "/v", own: true, users: map[string]bool{"a": true}, busy: make(chan struct{}, 1)}
	if err := v.lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.lock(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	vs := volumes{known: map[string]*volume{"/own": v,
		"/shared": {dir: "/s", users: map[string]bool{"a": true}}}}
	if dirs := vs.forget("a"); len(dirs) != 1 || dirs[0] != "/v" || vs.known["/own"] != nil ||
		vs.known["/shared"] == nil {
		t.Errorf("%v, %v", dirs, vs.known)
	}
}

// TestPlausible checks that a sandbox cannot say that it has used more than it has.
func TestPlausible(t *testing.T) {
	const much = 1 << 62
	s := plausible(guest.Stats{CPU: much, Memory: much, Limit: much, PIDs: much},
		turnstone.Shape{CPUs: 2, Memory: 1 << 30}, time.Second)
	if s.CPU != 2e9 || s.Memory != 1<<30 || s.Limit != 1<<30 || s.PIDs > 1<<30 {
		t.Errorf("%+v", s)
	}
}

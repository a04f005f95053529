package pod

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/shim/guest"
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
	time.AfterFunc(time.Millisecond, cancel)
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

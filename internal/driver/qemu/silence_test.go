package qemu

import (
	"errors"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/driver/console"
)

// TestSilence: a machine that waits for its host is not silent, however long; one that idles, computes or
// cannot be measured is.
func TestSilence(t *testing.T) {
	const step = time.Second
	now := time.Unix(1, 0)
	load := console.Load{}
	var failed error
	measure := func() (console.Load, error) { return load, failed }
	var s silence
	look := func(text string, passed time.Duration) time.Duration {
		now = now.Add(passed)
		return s.look(text, now, measure)
	}
	want := func(what string, got, want time.Duration) {
		t.Helper()
		if got != want {
			t.Errorf("%s: silent for %s, want %s", what, got, want)
		}
	}
	want("the first look", look("", time.Hour), 0)
	load.Busy = true
	want("it waits for a processor", look("", time.Hour), 0)
	load.CPU += step
	want("it computes in a long time", look("", time.Hour), step)
	load.Busy = false
	want("it idles", look("", step), 2*step)
	failed = errors.New("unknown")
	want("it cannot be measured", look("", step), 3*step)
	failed = nil
	want("too soon to tell", look("", silenceLook/2), 3*step)
	want("it prints", look("a line", silenceLook/2), 0)
	want("it idles again", look("a line", step), step)
}

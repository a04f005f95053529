package receipt

import (
	"net/netip"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// TestRunningAt finds the command of a refusal.
func TestRunningAt(t *testing.T) {
	zero := time.Now()
	run := func(text string, from, took int64) turnstone.CommandReport {
		return turnstone.CommandReport{Kind: "simple", Text: text,
			Start: turnstone.Millis(from * 1e6), Duration: turnstone.Millis(took * 1e6)}
	}
	c := &commands{zero: zero, reports: []turnstone.CommandReport{
		{Kind: "pipeline", Text: "whole", Start: 0, Duration: turnstone.Millis(9 * time.Second)},
		run("sleep 1", 0, 1000), run("curl https://a.example", 1000, 50),
		run("exec 3<>/dev/tcp/$x/80", 2000, 1), run("sleep 1", 2001, 1000),
		run("echo done", 5000, 1)}}
	for _, test := range []struct {
		at   int64
		host string
		want string
	}{
		{1020, "", "curl https://a.example"},
		{990, "", "curl https://a.example"},           // a little early
		{1070, "a.example", "curl https://a.example"}, // a little late
		{1990, "b.example", "exec 3<>/dev/tcp/$x/80"}, // sleep opens no connection
		{2100, "", "exec 3<>/dev/tcp/$x/80"},          // as named
		{2800, "", "sleep 1"},                         // possibly in the background
		{5001, "", "echo done"}, {9000, "", ""},
	} {
		got := ""
		if r := runningAt(c, zero.Add(time.Duration(test.at)*time.Millisecond), test.host,
			netip.AddrPort{}); r != nil {
			got = r.Text
		}
		if got != test.want {
			t.Errorf("at %d: %q, want %q", test.at, got, test.want)
		}
	}
	if runningAt(nil, zero, "", netip.AddrPort{}) != nil {
		t.Error("a command of none")
	}
}

// TestGuestClock uses the fastest record.
func TestGuestClock(t *testing.T) {
	asked := time.Now().Add(-10 * time.Second)
	g := newGuestClock(asked)
	before := time.Now()
	g.told([]wire.ShellRecord{{Start: int64(time.Second), Duration: int64(time.Second)}})
	g.told([]wire.ShellRecord{{Start: int64(9 * time.Second),
		Duration: int64(500 * time.Millisecond)}, {Start: int64(time.Second)}})
	const ran = 9500 * time.Millisecond
	if z := g.zero(); z.Before(before.Add(-ran)) || z.After(time.Now().Add(-ran)) {
		t.Errorf("the step began %s after it was asked for", z.Sub(asked))
	}
}

package quota

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/server/controller/usage"
)

// TestCheck: each limit is reached exactly, and its error names limit, use and setting.
func TestCheck(t *testing.T) {
	const gib = 1 << 30
	for _, x := range []struct {
		limits  Limits
		has     usage.Standing
		fits    Want
		exceeds Want
		says    []string
	}{
		{Limits{Sandboxes: 3}, usage.Standing{Held: 2}, Want{Sandboxes: 1}, Want{Sandboxes: 2},
			[]string{"sandboxes is 3", "2 are in use", "raise sandboxes in"}},
		{Limits{CPUs: 4}, usage.Standing{CPUs: 2}, Want{Sandboxes: 2, Each: turnstone.Machine{CPUs: 1}},
			Want{Turn: true, Each: turnstone.Machine{CPUs: 3}}, []string{"CPUs of machines is 4", "raise cpus"}},
		{Limits{Memory: 2 * gib}, usage.Standing{Memory: gib},
			Want{Turn: true, Each: turnstone.Machine{Memory: gib}},
			Want{Sandboxes: 1, Each: turnstone.Machine{Memory: gib + 1}}, []string{"memory of machines is 2", "raise memory"}},
		{Limits{Disk: gib}, usage.Standing{}, Want{Sandboxes: 1, Each: turnstone.Machine{Disk: gib}},
			Want{Sandboxes: 2, Each: turnstone.Machine{Disk: gib}}, []string{"raise disk"}},
		{Limits{Stored: gib}, usage.Standing{Stored: gib}, Want{Sandboxes: 1}, Want{Stores: true},
			[]string{"stored bytes is 1", "raise stored"}},
		{Limits{Memory: gib}, usage.Standing{Memory: gib / 2}, Want{}, // no sum overflows
			Want{Sandboxes: 1, Each: turnstone.Machine{Memory: -1}}, []string{"raise memory"}},
		{Limits{Sent: gib}, usage.Standing{Sent: gib}, Want{Stores: true}, Want{Turn: true},
			[]string{"sent 1", "00:00 UTC", "raise bytes_out"}},
	} {
		b := New(func(string) Limits { return x.limits })
		if err := b.Check("acme", x.has, x.fits); err != nil {
			t.Errorf("%+v: %v", x.limits, err)
		}
		err := b.Check("acme", x.has, x.exceeds)
		if turnstone.KindOf(err) != turnstone.KindExhausted {
			t.Fatalf("%+v: %v", x.limits, err)
		}
		text := err.Error() + turnstone.HintOf(err)
		for _, s := range append(x.says, "tenant acme") {
			if !strings.Contains(text, s) {
				t.Errorf("%q is not in %q", s, text)
			}
		}
		if err := New(nil).Check("acme", x.has, x.exceeds); err != nil {
			t.Errorf("without limits: %v", err)
		}
	}
}

// TestTurns: the turns of a minute are bounded for each tenant alone.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(func(string) Limits { return Limits{Turns: 60} })
		for i := range 60 {
			if err := b.TakeTurn("a"); err != nil {
				t.Fatalf("turn %d: %v", i, err)
			}
		}
		err := b.TakeTurn("a")
		if turnstone.KindOf(err) != turnstone.KindExhausted || !api.Retryable(err) ||
			!strings.Contains(turnstone.HintOf(err), "raise turns") {
			t.Errorf("%v", err)
		}
		if err := b.TakeTurn("b"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := b.TakeTurn("a"); err != nil {
			t.Error(err)
		}
	})
}

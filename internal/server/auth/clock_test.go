package auth

import (
	"testing"
	"time"
)

// TestClockSetBack: a wall clock that is set back does not make an expired token valid, and is
// believed after a while, so that a clock that was wrong before does no harm for ever.
func TestClockSetBack(t *testing.T) {
	s := newSetup(t)
	token := s.issue(t, s.usual()).Token.Reveal()
	s.time.pass(time.Hour + time.Minute)
	check(t, s.publisher.Beat(t.Context()))
	s.refused(t, token, Expired)
	s.time.move(-2*time.Hour, time.Second)
	s.refused(t, token, Expired)
	s.time.pass(maxHold - time.Second)
	s.refused(t, token, Expired)
	// Meanwhile a new token is accepted if it lives longer than the clock was set back.
	long := s.usual()
	long.Expires = s.time.wallTime().Add(3 * time.Hour)
	s.accepted(t, s.issue(t, long).Token.Reveal())
	s.time.pass(2 * time.Second)
	s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
	if got := s.clock.Latest(); !got.Equal(s.time.wallTime()) {
		t.Errorf("the clock says %s after %s", got, maxHold)
	}
	// Set back a second time: it is held again.
	before := s.clock.Latest()
	s.time.move(-time.Hour, time.Second)
	if got := s.clock.Latest(); got.Before(before) {
		t.Errorf("the clock went back to %s", got)
	}
}

// TestClockAhead: a wall clock that jumps ahead is believed, as after the sleep of a machine.
func TestClockAhead(t *testing.T) {
	s := newSetup(t)
	token := s.issue(t, s.usual()).Token.Reveal()
	s.time.move(24*time.Hour, 0)
	check(t, s.publisher.Beat(t.Context()))
	s.refused(t, token, Expired)
	s.accepted(t, s.issue(t, s.usual()).Token.Reveal())
}

// TestClockAdjusted: small corrections are followed, and do not add up.
func TestClockAdjusted(t *testing.T) {
	f := &fakeClock{time: time.Unix(1e9, 0)}
	c := NewClock(f.wallTime, f.upTime)
	for range 100 {
		f.move(500*time.Millisecond, time.Second)
		if got := c.Latest(); !got.Equal(f.wallTime()) {
			t.Fatalf("the clock says %s at %s", got, f.wallTime())
		}
	}
}

func TestSystemClock(t *testing.T) {
	c := SystemClock()
	first := c.Latest()
	if again := c.Latest(); again.Before(first) || c.Now().IsZero() {
		t.Errorf("%s comes after %s", again, first)
	}
}

func TestVerifierConfig(t *testing.T) {
	for name, c := range map[string]VerifierConfig{
		"no name": {}, "leeway": {Name: server, Leeway: MaxLeeway + 1},
		"negative leeway": {Name: server, Leeway: -1}, "stale": {Name: server, Stale: 1},
		"own issuer": {Name: server, Issuers: []OIDC{{Issuer: server, Tenant: "a"}}},
		"twice": {Name: server, Issuers: []OIDC{{Issuer: "https://a.example", Tenant: "a"},
			{Issuer: "https://a.example", Tenant: "b"}}},
	} {
		if v, err := NewVerifier(c); err == nil {
			t.Errorf("%s: accepted", name)
			check(t, v.Close())
		}
	}
}

package envd

import (
	"testing"
	"time"
)

// TestShares: a tenant that takes all that it gets leaves places to others, and places come back.
func TestShares(t *testing.T) {
	s := &shares{most: 100}
	count := func(tenant string) (n int) {
		for s.take(tenant) {
			n++
		}
		return n
	}
	if a, b, c := count("a"), count("b"), count("c"); a != 50 || b != 25 || c != 13 {
		t.Errorf("%d %d %d", a, b, c)
	}
	for range 50 {
		s.leave("a")
	}
	if s.take("b"); s.per["b"] != 26 || s.taken != 39 || len(s.per) != 2 {
		t.Errorf("%+v", s)
	}
}

// TestTimersOfTenants: the timers of one tenant leave places to others, and are given back.
func TestTimersOfTenants(t *testing.T) {
	all := newTimers()
	all.shares.most = 4
	due, ended := time.Now().Add(time.Hour), false
	for range 2 {
		all.kill(&Box{Tenant: "a"}, "p", due)(&ended)
	}
	if all.shares.take("a") || !all.shares.take("b") {
		t.Errorf("%+v", all.shares)
	}
	all.close()
}

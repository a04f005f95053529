package node

import (
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/channel"
)

// TestProofsAreUsedOnce follows the memory of used proofs over a clock that jumps.
func TestProofsAreUsedOnce(t *testing.T) {
	var u proofs
	now := time.Now()
	n := byte(0)
	proof := func(at time.Time) *channel.Possession {
		n++
		return &channel.Possession{Time: at, ID: [32]byte{n}}
	}
	want := func(what string, got, want ProofFault) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	first := proof(now)
	want("a proof", u.use("a", first, now), "")
	want("a replay", u.use("a", first, now.Add(proofAge-1)), ProofUsed)
	want("an old one", u.use("a", proof(now.Add(-proofAge-1)), now), ProofClock)
	want("a new one", u.use("a", proof(now.Add(proofAhead+1)), now), ProofClock)
	want("a slow clock's", u.use("a", proof(now.Add(-proofAge)), now), "")
	later := now.Add(2*proofAge + 1)
	want("later", u.use("a", proof(later), later), "")
	if len(u.used) != 1 || u.count["a"] != 1 {
		t.Errorf("%d proofs are remembered, %d of the tenant", len(u.used), u.count["a"])
	}
	want("a replay after the clock went back", u.use("a", first, now), ProofClock)
	want("another after the clock went back", u.use("a", proof(now.Add(1)), now), "")
}

// TestProofsAreBounded: a tenant that makes many calls takes no room from another.
func TestProofsAreBounded(t *testing.T) {
	var u proofs
	now := time.Now()
	for i := range maxTenantProofs {
		p := &channel.Possession{Time: now, ID: [32]byte{byte(i), byte(i >> 8), byte(i >> 16)}}
		if fault := u.use("a", p, now); fault != "" {
			t.Fatal(i, fault)
		}
	}
	more := &channel.Possession{Time: now, ID: [32]byte{31: 1}}
	if fault := u.use("a", more, now); fault != ProofFull {
		t.Errorf("one more: %q", fault)
	}
	if fault := u.use("b", more, now); fault != "" {
		t.Errorf("another tenant: %q", fault)
	}
	after := now.Add(proofAge + time.Second)
	if fault := u.use("a", &channel.Possession{Time: after, ID: [32]byte{31: 2}}, after); fault != "" {
		t.Errorf("later: %q", fault)
	}
}

package sandbox

import (
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/substrate"
)

// TestIdentity checks that each sandbox has an identity of its own, except that deterministic
// sandboxes have that of their seed and their clock.
func TestIdentity(t *testing.T) {
	if a, b := ownIdentity(nil), ownIdentity(nil); reflect.DeepEqual(a.entropy, b.entropy) ||
		reflect.DeepEqual(a.machineID, b.machineID) {
		t.Errorf("%+v twice", a)
	}
	of := func(seed uint64) identity {
		return ownIdentity(substrate.DeterminismOf(&turnstone.Determinism{Seed: seed,
			Clock: turnstone.DefaultClock()}))
	}
	a, b := of(42), of(42)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%+v, and then %+v", a, b)
	}
	if other := of(43); reflect.DeepEqual(a.entropy, other.entropy) ||
		reflect.DeepEqual(a.machineID, other.machineID) {
		t.Error("another seed has the same identity")
	}
	if got := a.clock.Format(time.RFC3339Nano); got != "2026-01-01T00:00:00Z" ||
		len(a.entropy) != 64 || len(a.machineID) != 16 {
		t.Errorf("%+v at %s", a, got)
	}
	// Another version of the program has to derive the same bytes.
	const want = "24875ea03ab4bca9cd8bdbfbbb928698"
	if got := hex.EncodeToString(a.machineID); got != want {
		t.Errorf("machine ID %s, want %s", got, want)
	}
}

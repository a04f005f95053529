package gvisor

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/substrate/substratetest"
)

// TestDeterministic: the same seed and clock give the same bytes, also on a busy host.
func TestDeterministic(t *testing.T) {
	h := turntest.Home(t)
	substratetest.Deterministic(t, newSubstrate(t, h),
		substratetest.Config{Machine: testMachine(t, h)}, func() func() {
			var stop atomic.Bool
			for range runtime.NumCPU() {
				go func() {
					for !stop.Load() {
					}
				}()
			}
			return func() { stop.Store(true) }
		})
}

// TestDeterministicDoor: a step cannot make its sandbox deterministic, and cannot change the seed of
// one that is.
func TestDeterministicDoor(t *testing.T) {
	h := turntest.Home(t)
	s, m := newSubstrate(t, h), testMachine(t, h)
	for _, m.Determinism = range []*substrate.Determinism{nil, {Clock: time.Unix(1767225600, 0)}} {
		_, client := substratetest.Clone(t, s, m, nil)
		got, _ := substratetest.Shell(t, client,
			`perl -e '$a = "x" x 40; print syscall(157, 0x5475726e, $a), " ", $!'`)
		if got != "-1 Invalid argument" {
			t.Errorf("deterministic %t: prctl returned %q", m.Determinism != nil, got)
		}
	}
}

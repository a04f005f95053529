package pool

import (
	"context"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/bench/size"
)

// idle is a machine that does nothing.
type idle struct{}

func (idle) Check(context.Context) error { return nil }
func (idle) Close() error                { return nil }

// idlePool returns a pool in which n machines wait, of 20 keys.
func idlePool(b *testing.B, n int) *Pool[idle] {
	p := New(Options[idle]{Every: time.Hour, Make: func(context.Context, Key, string) (idle, error) {
		return idle{}, nil
	}})
	b.Cleanup(func() { _ = p.Close() })
	keys := size.OfProgram().Of(20)
	for i := range keys {
		p.SetTarget(Key{Source: string(rune('a' + i)), Shape: turnstone.Shape{Memory: 1}},
			Target{Min: n / keys, Max: n / keys})
	}
	for p.Memory() < turnstone.Bytes(n) || ready(p) < n {
		time.Sleep(time.Millisecond)
	}
	b.ReportAllocs()
	b.ResetTimer()
	return p
}

func ready(p *Pool[idle]) (n int) {
	for _, s := range p.Stats() {
		n += s.Ready
	}
	return n
}

// BenchmarkClaim is a claim of a pool in which 1,000 machines wait, with the making of the next one.
func BenchmarkClaim(b *testing.B) {
	p := idlePool(b, size.OfProgram().Of(1000))
	k := Key{Source: "a", Shape: turnstone.Shape{Memory: 1}}
	for b.Loop() {
		if _, err := p.Claim(b.Context(), k); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLook is what the pool does every second, if no check is due.
func BenchmarkLook(b *testing.B) {
	p := idlePool(b, size.OfProgram().Of(1000))
	for b.Loop() {
		p.Look(b.Context())
	}
}

// BenchmarkStats is a look of an operator.
func BenchmarkStats(b *testing.B) {
	p := idlePool(b, size.OfProgram().Of(1000))
	for b.Loop() {
		p.Stats()
	}
}

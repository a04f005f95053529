// Package metered adds up what the machines of an operation used.
package metered

import (
	"context"
	"sync"

	"turnstone.dev/turnstone"
)

// A Meter has a sum. Its methods are safe for concurrent use; those of nil do nothing.
type Meter struct {
	mu  sync.Mutex
	sum turnstone.Used
}

// Add adds what a machine used until its end.
func (m *Meter) Add(u turnstone.Used) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sum = turnstone.Used{CPU: m.sum.CPU + u.CPU, Sent: m.sum.Sent + u.Sent,
		Received: m.sum.Received + u.Received}
}

// Sum returns the sum so far.
func (m *Meter) Sum() turnstone.Used {
	if m == nil {
		return turnstone.Used{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sum
}

type key struct{}

// NewContext returns a context whose machines m counts when they end.
func NewContext(ctx context.Context, m *Meter) context.Context {
	return context.WithValue(ctx, key{}, m)
}

// From returns the meter of NewContext, or nil.
func From(ctx context.Context) *Meter {
	m, _ := ctx.Value(key{}).(*Meter)
	return m
}

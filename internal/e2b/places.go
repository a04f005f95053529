package e2b

import (
	"sync"

	"turnstone.dev/turnstone"
)

// maxPerSandbox bounds the requests to a sandbox at one time. A sandbox accepts 60 connections, of
// which some are for others.
const maxPerSandbox = 44

// places count the requests to sandboxes.
type places struct {
	mu  sync.Mutex
	per map[turnstone.SandboxID]int
}

func newPlaces() *places { return &places{per: map[turnstone.SandboxID]int{}} }

// take returns a function that gives the place back, or false if there is none.
func (p *places) take(id turnstone.SandboxID) (func(), bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.per[id] >= maxPerSandbox {
		return nil, false
	}
	p.per[id]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.per[id]--; p.per[id] == 0 {
			delete(p.per, id)
		}
	}, true
}

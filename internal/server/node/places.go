package node

import "sync"

// places bound the channels that are open, in all and of each tenant. A tenant may have as many as
// are free, so none can keep the others out, however many tokens its members have.
type places struct {
	most int

	mu  sync.Mutex
	all int
	of  map[string]int // by tenant; "" is the operator
}

func newPlaces(most int) *places { return &places{most: most, of: map[string]int{}} }

// take takes a place for a tenant, and reports whether there was one. leave gives it back.
func (p *places) take(tenant string) (leave func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[tenant] >= p.most-p.all {
		return nil, false
	}
	p.all++
	p.of[tenant]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all--
		if p.of[tenant]--; p.of[tenant] == 0 {
			delete(p.of, tenant)
		}
	}, true
}

func (p *places) open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

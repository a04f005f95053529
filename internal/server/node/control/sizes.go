package control

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/node/tenants"
)

const (
	// measureEvery is the least time between two measurements of sessions, and measureShare the
	// least part of the time without one: a measurement reads all trees.
	measureEvery = 15 * time.Second
	measureShare = 20
)

// sizes are the sizes of sessions, as they were measured last.
type sizes struct {
	mu     sync.Mutex
	busy   bool
	next   time.Time
	of     map[sizeName]int64
	stored map[string]int64  // bytes of stores, by tenant
	stamps map[string]string // of databases, by tenant
}

type sizeName struct {
	tenant  string
	session turnstone.SessionID
}

func (z *sizes) get(tenant string, id turnstone.SessionID) int64 {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.of[sizeName{tenant, id}]
}

// keep drops the sizes of other tenants than these.
func (z *sizes) keep(tenants map[string]bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	maps.DeleteFunc(z.stored, func(tenant string, _ int64) bool { return !tenants[tenant] })
	maps.DeleteFunc(z.of, func(n sizeName, _ int64) bool { return !tenants[n.tenant] })
}

// measure begins to measure the sessions of tenants whose database has changed, unless it was done a
// short time ago.
func (s *Service) measure(now time.Time) {
	z := &s.sizes
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.busy || now.Before(z.next) {
		return
	}
	var changed []*tenants.State
	stamps := make(map[string]string)
	for _, st := range s.o.Tenants.All() {
		stamps[st.Tenant] = databaseStamp(st)
		if stamps[st.Tenant] != z.stamps[st.Tenant] {
			changed = append(changed, st)
		}
	}
	if len(changed) == 0 {
		return
	}
	z.busy, z.stamps = true, stamps
	ctx, done := context.WithCancel(s.ctx)
	for _, st := range changed {
		s.o.Tenants.Use(ctx, st)
	}
	s.wg.Go(func() {
		defer done()
		began := time.Now()
		for _, st := range changed {
			s.measureTenant(st)
		}
		z.mu.Lock()
		defer z.mu.Unlock()
		z.busy, z.next = false, time.Now().Add(max(measureEvery, measureShare*time.Since(began)))
	})
}

func (s *Service) measureTenant(st *tenants.State) {
	u, err := st.Executor.Usage(s.ctx)
	if err != nil {
		if s.ctx.Err() == nil {
			slog.Warn("sessions cannot be measured", "tenant", st.Tenant, "err", err)
		}
		return
	}
	z := &s.sizes
	z.mu.Lock()
	if z.of == nil {
		z.of, z.stored = make(map[sizeName]int64), make(map[string]int64)
	}
	z.stored[st.Tenant] = u.Store.Stored
	for n := range z.of {
		if n.tenant == st.Tenant {
			delete(z.of, n)
		}
	}
	for _, one := range u.Sessions {
		z.of[sizeName{st.Tenant, one.ID}] = one.Logical
	}
	z.mu.Unlock()
	s.lookSessions(s.ctx, st, true)
}

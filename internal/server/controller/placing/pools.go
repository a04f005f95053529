package placing

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/fleet"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
)

// Bounds of the pools that callers have set.
const (
	maxAskedEach = 100 // of a tenant
	maxAskedAll  = 1000
)

// An askedPool is a pool that a caller has set, in the order of their names.
type askedPool struct {
	Pool
	kind fleet.Kind
	ends time.Duration
}

type askedKey struct{ tenant, name string }

// PoolService serves the PoolService of the API.
type PoolService struct {
	Lock  sync.Locker // guards the fleet
	Fleet *Fleet
	// Sized returns the sizes of a machine of a template. The caller holds Lock.
	Sized func(m *v1.Machine, template string) turnstone.Machine
	// Template is that of a request that names none.
	Template string
}

// SetPool implements turnstonev1connect.PoolServiceHandler. Pools are not recorded: who wants one sets
// it again and again.
func (s *PoolService) SetPool(ctx context.Context, r *connect.Request[v1.SetPoolRequest]) (
	*connect.Response[v1.SetPoolResponse], error) {
	p, m := guard.Caller(ctx), r.Msg
	template := cmp.Or(m.GetTemplate(), m.GetImage(), s.Template)
	if err := p.Allow(auth.Request{Scope: auth.PoolsWrite, Template: template}); err != nil {
		return nil, err
	}
	s.Lock.Lock()
	defer s.Lock.Unlock()
	want := Pool{Tenant: p.Tenant, Template: template, Machine: machineOf(m.Machine),
		Min: int(m.Count), Max: int(m.Count), Avoid: m.AvoidNodes}
	if err := s.Fleet.ask(m.Name, want, m.Ttl.AsDuration()); err != nil {
		return nil, err
	}
	return connect.NewResponse(s.Fleet.state(p.Tenant, m.Name, s.Sized)), nil
}

// ask sets a pool for a time. A count of 0 ends it.
func (f *Fleet) ask(name string, want Pool, ttl time.Duration) error {
	now, k := f.now(), askedKey{want.Tenant, name}
	old := f.asked[k]
	switch {
	case want.Max == 0:
		if old != nil {
			f.drop(k)
			f.divide(now)
		}
		return nil
	case old != nil && old.same(want):
		old.ends = now + ttl
		return nil
	case old == nil:
		if err := f.roomForPool(want.Tenant); err != nil {
			return err
		}
	}
	// Its shape is its name: the sizes of its machines are known when its template is.
	x := &askedPool{Pool: want, ends: now + ttl,
		kind: fleet.Kind{Tenant: want.Tenant, Template: want.Template, Shape: "asked/" + name}}
	if old != nil && old.kind != x.kind {
		f.pools.Remove(old.kind)
	}
	f.asked[k] = x
	f.pools.Put(fleet.Pool{Kind: x.kind, Min: want.Min, Max: want.Max, Avoid: want.Avoid})
	f.divide(now)
	return nil
}

// same reports whether a pool is as it is wanted.
func (x *askedPool) same(want Pool) bool {
	return x.Tenant == want.Tenant && x.Template == want.Template && x.Machine == want.Machine &&
		x.Min == want.Min && x.Max == want.Max && slices.Equal(x.Avoid, want.Avoid)
}

func (f *Fleet) roomForPool(tenant string) error {
	own := 0
	for k := range f.asked {
		if k.tenant == tenant {
			own++
		}
	}
	if own < maxAskedEach && len(f.asked) < maxAskedAll {
		return nil
	}
	return turnstone.Errorf("pool.set", turnstone.KindExhausted, "the pool",
		"there are %d of the tenant already, and %d of all", own, len(f.asked)).
		WithHint("end another pool first")
}

// drop removes a pool that was set.
func (f *Fleet) drop(k askedKey) {
	f.pools.Remove(f.asked[k].kind)
	delete(f.asked, k)
}

// expire removes the pools whose time is over.
func (f *Fleet) expire(now time.Duration) {
	ended := false
	for k, x := range f.asked {
		if now >= x.ends {
			f.drop(k)
			ended = true
		}
	}
	if ended {
		f.divide(now) // also if it was the last
	}
}

// divide computes the targets, and divides them among nodes.
func (f *Fleet) divide(now time.Duration) {
	f.pools.Tick(now, now-f.ticked, f.Open())
	f.ticked = now
}

// state says what became of a pool that was set. Of pools of one kind those with the earlier names
// have the sandboxes that wait first.
func (f *Fleet) state(tenant, name string, sized func(*v1.Machine, string) turnstone.Machine) *v1.SetPoolResponse {
	x := f.asked[askedKey{tenant, name}]
	if x == nil {
		return &v1.SetPoolResponse{}
	}
	kind := func(p Pool) fleet.Kind {
		return kindOf(p.Tenant, p.Template, sized(machine(p.Machine), p.Template))
	}
	own := kind(x.Pool)
	ready, making := f.Waiting(own, x.Avoid...)
	last := true
	for k, o := range f.asked {
		if o == x || k.tenant != tenant || kind(o.Pool) != own {
			continue
		}
		if k.name > name {
			last = false
			continue
		}
		theirs := f.pools.Target(o.kind)
		taken := min(ready, theirs)
		ready -= taken
		making -= min(making, theirs-taken)
	}
	target := f.pools.Target(x.kind)
	if !last {
		ready = min(ready, target)
		making = min(making, target-ready)
	}
	return &v1.SetPoolResponse{Target: uint32(target), Ready: uint32(ready), Making: uint32(making)}
}

// Shares returns a node's shares of the pools. Those of one kind are one share.
func (f *Fleet) Shares(node string) (all []*v1.PoolShare) {
	of := make(map[fleet.Kind]Pool, len(f.settings)+len(f.asked))
	for i, p := range f.settings {
		of[poolKind(p, i)] = p
	}
	for _, x := range f.asked {
		of[x.kind] = x.Pool
	}
	type place struct {
		tenant, template string
		machine          turnstone.Machine
	}
	at := map[place]*v1.PoolShare{}
	for _, s := range f.pools.Shares(node) {
		if s.Count == 0 {
			continue
		}
		p := of[s.Kind]
		asked := strings.HasPrefix(s.Kind.Shape, "asked/")
		k := place{p.Tenant, p.Template, p.Machine}
		if old := at[k]; old != nil {
			old.Min, old.Max = old.Min+uint32(s.Count), old.Max+uint32(2*s.Count)
			old.Build = old.Build || asked
			continue
		}
		at[k] = &v1.PoolShare{Tenant: p.Tenant, Template: p.Template, Machine: machine(p.Machine),
			Min: uint32(s.Count), Max: uint32(2 * s.Count), Idle: durationpb.New(p.Idle), Build: asked}
		all = append(all, at[k])
	}
	return slices.Clip(all)
}

func machine(m turnstone.Machine) *v1.Machine {
	return &v1.Machine{Cpus: uint32(m.CPUs), Memory: uint64(m.Memory), Disk: uint64(m.Disk)}
}

package fleet

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// A Pool is how many sandboxes of a kind wait on all nodes together.
type Pool struct {
	Kind     Kind
	Min, Max int
	// Cover is for how long the arrivals of claims are kept ready: at least as long as a sandbox
	// takes to be made. Default: 10 seconds.
	Cover time.Duration
	// Idle is how long the target stays after the arrivals that raised it; without arrivals for that
	// long it is Min. Default: 10 minutes.
	Idle time.Duration
	// Avoid are nodes that have no share.
	Avoid []string
}

// Pools are the targets of all kinds, and their shares on nodes.
type Pools struct {
	bounds func(tenant string) int // of the sum of a tenant's targets; 0: none
	all    []*pool
	by     map[Kind]*pool
}

// A pool is a kind's arrivals, target and shares.
type pool struct {
	Pool
	arrived int           // since the last tick
	rate    float64       // of arrivals, in a second, over the last ticks
	last    time.Duration // the last arrival
	ever    bool
	raised  time.Duration // when the target was last needed
	target  int
	granted int // of target, within the tenant's bound
	shares  map[string]int
}

// NewPools returns the pools, none of which has a target yet. bounds may be nil.
func NewPools(all []Pool, bounds func(tenant string) int) *Pools {
	p := &Pools{bounds: bounds, by: map[Kind]*pool{}}
	for _, x := range all {
		p.Put(x)
	}
	return p
}

// Put adds a pool, or changes the one of its kind, whose shares stay until the next tick.
func (p *Pools) Put(x Pool) {
	x.Cover, x.Idle = cmp.Or(x.Cover, 10*time.Second), cmp.Or(x.Idle, 10*time.Minute)
	if old := p.by[x.Kind]; old != nil {
		old.Pool = x
		return
	}
	one := &pool{Pool: x, shares: map[string]int{}}
	p.all, p.by[x.Kind] = append(p.all, one), one
}

// Remove removes the pool of a kind.
func (p *Pools) Remove(k Kind) {
	delete(p.by, k)
	p.all = slices.DeleteFunc(p.all, func(x *pool) bool { return x.Kind == k })
}

// Arrive notes a claim.
func (p *Pools) Arrive(now time.Duration, k Kind) {
	if x := p.by[k]; x != nil {
		x.arrived++
		x.last, x.ever = now, true
	}
}

// Target returns how many of a kind wait on all nodes together.
func (p *Pools) Target(k Kind) int {
	if x := p.by[k]; x != nil {
		return x.granted
	}
	return 0
}

// Shares returns what of each target waits on a node, in the order of the pools.
func (p *Pools) Shares(node string) (all []Share) {
	for _, x := range p.all {
		all = append(all, Share{x.Pool, x.shares[node]})
	}
	return all
}

// A Share is what of a pool waits on a node.
type Share struct {
	Pool
	Count int
}

// Tick computes the targets, and divides them among nodes. passed is the time since the last tick.
func (p *Pools) Tick(now, passed time.Duration, nodes []string) {
	sums := map[string]int{}
	for _, x := range p.all {
		x.aim(now, passed)
		sums[x.Kind.Tenant] += x.target
	}
	for _, x := range p.all {
		x.granted = x.target
		if bound := p.bound(x.Kind.Tenant); bound > 0 && sums[x.Kind.Tenant] > bound {
			x.granted = x.target * bound / sums[x.Kind.Tenant]
		}
		x.divide(x.granted, without(nodes, x.Avoid))
	}
}

// without returns the names that are not to be avoided.
func without(names, avoid []string) []string {
	if len(avoid) == 0 {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(avoid, n) })
}

func (p *Pools) bound(tenant string) int {
	if p.bounds == nil {
		return 0
	}
	return p.bounds(tenant)
}

// smooth is the time over which arrivals are averaged.
const smooth = 30 * time.Second

// aim computes the target. It rises at once, and falls when what is needed was clearly less for
// Idle: a pool that follows each change of the rate makes machines to close them.
func (x *pool) aim(now, passed time.Duration) {
	if passed > 0 {
		weight := 1 - math.Exp(-float64(passed)/float64(smooth))
		x.rate += weight * (float64(x.arrived)/passed.Seconds() - x.rate)
		x.arrived = 0
	}
	want := x.Min
	if x.ever && now-x.last <= x.Idle {
		mean := x.rate * x.Cover.Seconds()
		// arrivals vary by the root of their number: twice that serves nearly all of them
		want = max(x.Min, int(math.Ceil(mean+2*math.Sqrt(mean))))
	}
	want = min(want, x.Max)
	switch {
	case want >= x.target-x.target/4:
		x.target, x.raised = max(want, x.target), now
	case !x.ever || now-x.last > x.Idle, now-x.raised > x.Idle:
		x.target, x.raised = want, now
	}
	x.target = min(max(x.target, x.Min), x.Max)
}

// divide gives shares of the target to nodes, and moves as few as it can.
func (x *pool) divide(target int, nodes []string) {
	present := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		present[n] = true
	}
	sum := 0
	for n, count := range x.shares {
		if !present[n] {
			delete(x.shares, n)
			continue
		}
		sum += count
	}
	if len(nodes) == 0 {
		return
	}
	// From the fullest to the emptiest; equal ones in an order that differs between kinds, so that
	// pools of one sandbox each do not all wait on the same node.
	order := slices.Clone(nodes)
	keys := make(map[string]uint64, len(nodes))
	for _, n := range nodes {
		keys[n] = hash(n, x.Kind)
	}
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(x.shares[b], x.shares[a]), cmp.Compare(keys[a], keys[b]),
			strings.Compare(a, b))
	})
	even, more := target/len(order), target%len(order)
	for _, n := range order { // no node has more than an even share
		most := even
		if more > 0 && x.shares[n] > even {
			most++
			more--
		}
		if over := x.shares[n] - most; over > 0 {
			x.shares[n] = most
			sum -= over
		}
	}
	for _, n := range order { // first what all have, then one each
		if add := min(even-x.shares[n], target-sum); add > 0 {
			x.shares[n] += add
			sum += add
		}
	}
	for _, n := range order {
		if sum < target && x.shares[n] == even {
			x.shares[n]++
			sum++
		}
	}
}

// hash is FNV-1a.
func hash(node string, k Kind) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range []string{node, k.Tenant, k.Template, k.Shape} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h = (h ^ 0xff) * 1099511628211
	}
	return h
}

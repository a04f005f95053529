package fleet

import (
	"fmt"
	"testing"
	"time"
)

var base = Kind{Tenant: "x", Template: "base"}

func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint("n", i))
	}
	return all
}

// run ticks each 5 seconds with a number of arrivals in each, and returns the targets.
func run(p *Pools, now *time.Duration, ticks int, nodes []string, arrivals func(tick int) int) (all []int) {
	const every = 5 * time.Second
	for i := range ticks {
		for range arrivals(i) {
			p.Arrive(*now, base)
		}
		*now += every
		p.Tick(*now, every, nodes)
		all = append(all, p.Target(base))
	}
	return all
}

func sum(p *Pools, nodes []string) (total, least, most int) {
	least = 1 << 30
	for _, n := range nodes {
		c := p.Shares(n)[0].Count
		total, least, most = total+c, min(least, c), max(most, c)
	}
	return total, least, most
}

// TestTarget: the target follows the rate up at once, stays steady while the rate varies, and falls
// to zero after idleness.
func TestTarget(t *testing.T) {
	p := NewPools([]Pool{{Kind: base, Max: 100, Idle: time.Minute}}, nil)
	now := time.Duration(0)
	if all := run(p, &now, 3, names(3), func(int) int { return 0 }); all[2] != 0 {
		t.Errorf("without arrivals: %v", all)
	}
	all := run(p, &now, 120, names(3), func(i int) int { return 8 + i%5 }) // 2 a second
	turns := 0
	for i := 31; i < len(all); i++ {
		if all[i] != all[i-1] {
			turns++
		}
	}
	if last := all[len(all)-1]; last < 20 || last > 40 || turns > 4 {
		t.Errorf("2 claims a second, cover 10 s: %v, %d changes", all, turns)
	}
	all = run(p, &now, 20, names(3), func(int) int { return 1000 })
	if all[19] != 100 {
		t.Errorf("beyond Max: %v", all)
	}
	all = run(p, &now, 14, names(3), func(int) int { return 0 })
	if all[13] != 0 || all[5] == 0 {
		t.Errorf("after the last claim: %v", all)
	}
}

// TestShares: the sum of the shares is the target, whatever nodes come and go, shares differ by at
// most one, and few machines move.
func TestShares(t *testing.T) {
	p := NewPools([]Pool{{Kind: base, Min: 100, Max: 100}}, nil)
	nodes := names(7)
	p.Tick(0, time.Second, nodes)
	check := func(want int) {
		t.Helper()
		if total, least, most := sum(p, nodes); total != want || most-least > 1 {
			t.Errorf("%d nodes: the shares are %d to %d, together %d", len(nodes), least, most, total)
		}
	}
	check(100)
	before := p.Shares("n1")[0].Count
	nodes = nodes[1:]
	p.Tick(0, time.Second, nodes)
	check(100)
	if after := p.Shares("n1")[0].Count; after < before {
		t.Error("a node that stayed lost machines")
	}
	if p.Shares("n0")[0].Count != 0 {
		t.Error("a node that is gone has a share")
	}
	nodes = names(1000)
	p.Tick(0, time.Second, nodes)
	check(100)
	nodes = nil
	p.Tick(0, time.Second, nodes)
	nodes = names(3)
	p.Tick(0, time.Second, nodes)
	check(100)
}

// TestTenantBound: the targets of one tenant stay within its bound together.
func TestTenantBound(t *testing.T) {
	other := Kind{Tenant: "y", Template: "base"}
	p := NewPools([]Pool{{Kind: base, Min: 30, Max: 50},
		{Kind: Kind{Tenant: "x", Template: "two"}, Min: 10, Max: 50}, {Kind: other, Min: 9, Max: 9}},
		func(tenant string) int { return map[string]int{"x": 20}[tenant] })
	p.Tick(0, time.Second, names(4))
	if a, b, c := p.Target(base), p.Target(p.all[1].Kind), p.Target(other); a != 15 || b != 5 || c != 9 {
		t.Errorf("%d, %d, %d", a, b, c)
	}
}

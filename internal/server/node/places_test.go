package node

import "testing"

// TestPlaces: a tenant gets as many places as are free, others find one in spite of it, and places
// that are given back are free.
func TestPlaces(t *testing.T) {
	p := newPlaces(100)
	var leaves []func()
	fill := func(tenant string) (n int) {
		for {
			leave, ok := p.take(tenant)
			if !ok {
				return n
			}
			leaves = append(leaves, leave)
			n++
		}
	}
	for _, c := range []struct {
		tenant string
		want   int
	}{{"greedy", 50}, {"second", 25}, {"third", 13}, {"greedy", 0}, {"", 6}, {"fifth", 3}} {
		if got := fill(c.tenant); got != c.want {
			t.Errorf("%q got %d more, not %d", c.tenant, got, c.want)
		}
	}
	for _, leave := range leaves {
		leave()
	}
	if p.all != 0 || len(p.of) != 0 {
		t.Errorf("%d places are taken, by %v", p.all, p.of)
	}
	if got := fill("greedy"); got != 50 {
		t.Errorf("after all have left: %d", got)
	}
}

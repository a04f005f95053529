package fair

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A thing is what waits in a test.
type thing struct {
	tenant string
	n      int
	cost   int
}

// drain serves all, and returns the order of service.
func drain(q *Queue[thing]) (order []thing) {
	for {
		x, ok := q.Next()
		if !ok {
			return order
		}
		q.Remove(x.tenant, x, true)
		order = append(order, x)
	}
}

// TestFlood: what another tenant asks for while 10,000 items of one wait is served second.
func TestFlood(t *testing.T) {
	var q Queue[thing]
	for i := range 10_000 {
		q.Add("flood", 1, thing{"flood", i, 1})
	}
	for i := range 3 {
		x, _ := q.Next()
		q.Remove(x.tenant, x, true)
		quiet := thing{"quiet", i, 1}
		q.Add("quiet", 1, quiet)
		for place := 1; ; place++ {
			x, _ := q.Next()
			q.Remove(x.tenant, x, true)
			if x == quiet {
				break
			}
			if place > 1 {
				t.Fatalf("item %d of the quiet tenant was not among the first two", i)
			}
		}
	}
}

// TestOrder shows the order of service of three tenants, one of which has costly items.
func TestOrder(t *testing.T) {
	var q Queue[thing]
	for i := range 6 {
		q.Add("a", 1, thing{"a", i, 1})
	}
	for i := range 2 {
		q.Add("b", 3, thing{"b", i, 3})
	}
	for i := range 3 {
		q.Add("c", 1, thing{"c", i, 1})
	}
	var order string
	for _, x := range drain(&q) {
		order += fmt.Sprintf("%s%d ", x.tenant, x.n)
	}
	if want := "a0 c0 a1 c1 a2 b0 c2 a3 a4 a5 b1 "; order != want {
		t.Errorf("the order is %q, not %q", order, want)
	}
}

// TestQueue compares a queue with a model: within a tenant items are served in their order, what
// has left is not served, nobody starves, and no tenant that waits gets much less than another.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[thing]
		waits := map[string][]thing{}
		got := map[string]int{} // cost served while all of since wait
		blocked := map[string]bool{}
		total, made := 0, 0
		reset := func() { clear(got) }
		tenants := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2, 3:
				x := thing{tenants.Draw(t, "tenant"), made, rapid.IntRange(1, MaxCost).Draw(t, "cost")}
				made++
				if len(waits[x.tenant]) == 0 {
					reset()
				}
				q.Add(x.tenant, x.cost, x)
				waits[x.tenant] = append(waits[x.tenant], x)
				total++
			case 4: // one leaves
				name := tenants.Draw(t, "tenant")
				if n := len(waits[name]); n > 0 {
					i := rapid.IntRange(0, n-1).Draw(t, "which")
					x := waits[name][i]
					if !q.Remove(name, x, false) {
						t.Fatalf("%v is not there", x)
					}
					if i == 0 {
						delete(blocked, name)
					}
					waits[name] = slices.Delete(waits[name], i, i+1)
					total--
					reset()
				}
			case 5:
				if x, ok := q.Next(); ok {
					q.Block(x.tenant)
					blocked[x.tenant] = true
					reset()
				}
			case 6:
				q.Unblock()
				clear(blocked)
				reset()
			default:
				x, ok := q.Next()
				able := 0
				for name, all := range waits {
					if len(all) > 0 && !blocked[name] {
						able++
					}
				}
				if ok != (able > 0) {
					t.Fatalf("an item: %v, with %d tenants that can be served", ok, able)
				}
				if !ok {
					continue
				}
				if again, _ := q.Next(); again != x {
					t.Fatalf("%v, and then %v: nothing was served", x, again)
				}
				if blocked[x.tenant] || waits[x.tenant][0] != x {
					t.Fatalf("%v is not the first that can be served of %v", x, waits[x.tenant])
				}
				q.Remove(x.tenant, x, true)
				waits[x.tenant] = waits[x.tenant][1:]
				total--
				got[x.tenant] += x.cost
				for name, all := range waits {
					if len(all) > 0 && !blocked[name] && got[x.tenant]-got[name] > 2*MaxCost {
						t.Fatalf("%s got %d, and %s, which waits, %d", x.tenant, got[x.tenant], name,
							got[name])
					}
				}
				if len(waits[x.tenant]) == 0 {
					reset()
				}
			}
			if q.Len() != total || q.Of("a") != len(waits["a"]) {
				t.Fatalf("%d items, not %d", q.Len(), total)
			}
		}
		q.Unblock()
		if all := drain(&q); len(all) != total || q.Len() != 0 || len(q.ring) != 0 {
			t.Fatalf("%d of %d were served, and %d lines are left", len(all), total, len(q.ring))
		}
	})
}

// TestLeaving: one that has left changes nothing for others.
func TestLeaving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var with, without Queue[thing]
		n := rapid.IntRange(1, 40).Draw(t, "items")
		var gone []thing
		for i := range n {
			x := thing{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"), i,
				rapid.IntRange(1, 9).Draw(t, "cost")}
			with.Add(x.tenant, x.cost, x)
			// the first of each tenant stays: its arrival is the tenant's place in the round
			if without.Of(x.tenant) > 0 && rapid.Bool().Draw(t, "leaves") {
				gone = append(gone, x)
				continue
			}
			without.Add(x.tenant, x.cost, x)
		}
		for _, x := range gone {
			with.Remove(x.tenant, x, false)
		}
		if a, b := drain(&with), drain(&without); !slices.Equal(a, b) {
			t.Fatalf("the order is %v, and without those that left %v", a, b)
		}
	})
}

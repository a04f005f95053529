package recordstest

import (
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/testsize"
)

// A call is one call of a worker, and its answer.
type call struct {
	key, request string        // a creation, or
	object       int           // an event
	event        records.Event // of this object

	got   records.Object
	again bool
	err   error
}

// testConcurrent makes random calls of several workers at once. Whatever their order was, each key
// made one object, and the events that succeeded of an object are a walk through its table.
func testConcurrent(t *testing.T, f *fixture) {
	testsize.Checks(t, 40)
	round := 0
	some := []records.Event{records.Configured, records.CommandStarted, records.CommandsEnded,
		records.StopRequested, records.MachineDied}
	rapid.Check(t, func(r *rapid.T) {
		round++
		shared := f.make(object(records.Sandbox), object(records.Sandbox))
		drawn := rapid.Custom(func(r *rapid.T) *call {
			if rapid.Bool().Draw(r, "creates") {
				name := rapid.SampledFrom([]string{"p", "q"}).Draw(r, "key")
				return &call{key: fmt.Sprint(name, round),
					request: rapid.SampledFrom([]string{"x", "y"}).Draw(r, "request")}
			}
			return &call{object: rapid.IntRange(0, 1).Draw(r, "object"),
				event: rapid.SampledFrom(some).Draw(r, "event")}
		})
		workers := rapid.SliceOfN(rapid.SliceOfN(drawn, 1, 6), 2, 4).Draw(r, "workers")
		var running sync.WaitGroup
		for _, calls := range workers {
			running.Go(func() {
				for _, c := range calls {
					f.do(t, c, shared)
				}
			})
		}
		running.Wait()
		keys, walks := map[string][]*call{}, [2][]*call{}
		for _, calls := range workers {
			for _, c := range calls {
				if c.key != "" {
					keys[c.key] = append(keys[c.key], c)
				} else {
					walks[c.object] = append(walks[c.object], c)
				}
			}
		}
		for name, calls := range keys {
			checkKey(r, name, calls)
		}
		for i, calls := range walks {
			checkWalk(r, f.get(shared[i]), calls)
		}
	})
}

func (f *fixture) do(t *testing.T, c *call, shared []records.Object) {
	if c.key == "" {
		o := shared[c.object]
		c.got, c.err = f.Change(t.Context(), o.Node, o.Kind, o.ID, records.Change{Event: c.event})
		return
	}
	var made []records.Object
	made, c.again, c.err = f.Create(t.Context(), key(c.key, c.request), object(records.Turn))
	if c.err == nil {
		c.got = made[0]
	}
}

// checkKey: one call made the object, calls with its request answer it, and others are invalid.
func checkKey(r *rapid.T, name string, calls []*call) {
	var first *call
	for _, c := range calls {
		if c.err == nil && !c.again {
			if first != nil {
				r.Fatalf("key %s made %s and %s", name, first.got.ID, c.got.ID)
			}
			first = c
		}
	}
	if first == nil {
		r.Fatalf("key %s made nothing", name)
	}
	for _, c := range calls {
		same := c.request == first.request
		if same && (c.err != nil || c.got.ID != first.got.ID) ||
			!same && turnstone.KindOf(c.err) != turnstone.KindInvalid {
			r.Fatalf("key %s, request %s: %s: %v; the first was %s for request %s", name,
				c.request, c.got.ID, c.err, first.got.ID, first.request)
		}
	}
}

// checkWalk: the events that succeeded lead from the first state to the last.
func checkWalk(r *rapid.T, o records.Object, calls []*call) {
	n := map[records.Event]int{}
	for _, c := range calls {
		if c.err == nil {
			n[c.event]++
		} else if turnstone.KindOf(c.err) != turnstone.KindInvalid {
			r.Fatal(c.err)
		}
	}
	runs, ends := n[records.CommandStarted]-n[records.CommandsEnded],
		n[records.StopRequested]+n[records.MachineDied]
	want := records.Creating
	switch {
	case n[records.StopRequested] > 0:
		want = records.Stopped
	case n[records.MachineDied] > 0:
		want = records.Failed
	case runs == 1:
		want = records.Running
	case n[records.Configured] == 1:
		want = records.Ready
	}
	if o.State != want || n[records.Configured] > 1 || runs < 0 || runs > 1 || ends > 1 ||
		n[records.Configured] == 0 && n[records.CommandStarted]+n[records.StopRequested] > 0 {
		r.Fatalf("the sandbox is %s, want %s, after %v", o.State, want, n)
	}
}

package recordstest

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/testsize"
)

// A model is what a store should have, in plain maps.
type model struct {
	store   records.Store
	clock   *Clock
	table   map[string]map[records.Event]records.State
	objects map[string]*modelObject
	keys    map[string]*modelKey
	order   []string
}

type modelObject struct {
	kind  records.Kind
	state records.State
	ended time.Duration
	key   *modelKey
}

type modelKey struct {
	request string
	object  string
}

// testModel makes random calls at random times, and compares each answer, and in the end all
// objects, with the model's.
func testModel(t *testing.T, open Open) {
	testsize.Checks(t, 40)
	rapid.Check(t, func(r *rapid.T) {
		c := NewClock()
		s := open(t, c)
		defer func() { _ = s.Close() }()
		m := &model{store: s, clock: c, table: table(), objects: map[string]*modelObject{},
			keys: map[string]*modelKey{}}
		r.Repeat(map[string]func(*rapid.T){
			"create": func(r *rapid.T) { m.create(t, r) },
			"event":  func(r *rapid.T) { m.event(t, r) },
			"pass": func(r *rapid.T) {
				c.Pass(time.Duration(rapid.Int64Range(0, int64(20*time.Hour)).Draw(r, "time")))
			},
			"jump": func(r *rapid.T) {
				years := rapid.IntRange(-20, 20).Draw(r, "years")
				c.Jump(time.Date(2026+years, 1, 1, 0, 0, 0, 0, time.UTC).Sub(c.Now()))
			},
			"prune": func(r *rapid.T) {
				if err := s.Prune(t.Context()); err != nil {
					r.Fatal(err)
				}
			},
			"list": func(r *rapid.T) { m.compare(t, r) },
		})
		m.compare(t, r)
	})
}

func (m *model) create(t *testing.T, r *rapid.T) {
	kind := rapid.SampledFrom(kinds).Draw(r, "kind")
	name := rapid.SampledFrom([]string{"", "k1", "k2", "k3"}).Draw(r, "key")
	request := rapid.SampledFrom([]string{"x", "y"}).Draw(r, "request")
	o := object(kind)
	var k *records.Key
	if name != "" {
		k = key(name, request)
	}
	old := m.keys[name]
	if old != nil {
		if was := m.objects[old.object]; was.state.Final() &&
			was.ended+records.KeyLife <= m.clock.Elapsed() {
			was.key = nil
			old = nil
		}
	}
	got, again, err := m.store.Create(t.Context(), k, o)
	switch {
	case old == nil:
		if err != nil || again || got[0].ID != o.ID || got[0].State != records.First(kind) {
			r.Fatalf("a new object: %+v, %v, %v", got, again, err)
		}
		x := &modelObject{kind: kind, state: records.First(kind)}
		m.objects[o.ID] = x
		m.order = append(m.order, o.ID)
		if k != nil {
			x.key = &modelKey{request, o.ID}
			m.keys[name] = x.key
		}
	case old.request != request:
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			r.Fatalf("another request: %+v, %v", got, err)
		}
	case err != nil || !again || got[0].ID != old.object ||
		got[0].State != m.objects[old.object].state:
		r.Fatalf("the same request: %+v, %v, %v; want %s, %s", got, again, err, old.object,
			m.objects[old.object].state)
	}
}

func (m *model) event(t *testing.T, r *rapid.T) {
	if len(m.order) == 0 {
		return
	}
	id := rapid.SampledFrom(m.order).Draw(r, "object")
	e := rapid.SampledFrom(events).Draw(r, "event")
	x := m.objects[id]
	want, ok := m.table[string(x.kind)+" "+string(x.state)][e]
	got, err := m.store.Change(t.Context(), "n", x.kind, id, records.Change{Event: e})
	gone := x.state.Final() && turnstone.KindOf(err) == turnstone.KindNotFound
	if ok != (err == nil) || ok && got.State != want ||
		!ok && !gone && turnstone.KindOf(err) != turnstone.KindInvalid {
		r.Fatalf("%s that is %s: %s leads to %s: %v; want %s, %v", x.kind, x.state, e, got.State,
			err, want, ok)
	}
	if ok {
		x.state = want
		if want.Final() {
			x.ended = m.clock.Elapsed()
		}
	}
}

// compare lists all objects. Those that ended long ago may be gone.
func (m *model) compare(t *testing.T, r *rapid.T) {
	for _, kind := range kinds {
		want := []string{}
		for _, id := range slices.Backward(m.order) {
			x := m.objects[id]
			if x.kind != kind {
				continue
			}
			if x.state.Final() && x.ended+7*24*time.Hour <= m.clock.Elapsed() {
				if _, err := m.store.Object(t.Context(), "a", kind, id); err != nil {
					continue
				}
			}
			want = append(want, id)
		}
		got, p := []string{}, records.Page{Size: 7}
		for {
			list, next, err := m.store.List(t.Context(), "a", records.Filter{Kind: kind}, p)
			if err != nil {
				r.Fatal(err)
			}
			for _, o := range list {
				if x := m.objects[o.ID]; o.State != x.state {
					r.Fatalf("%s is %s, want %s", o.ID, o.State, x.state)
				}
			}
			got = append(got, ids(list)...)
			if p.Token = next; next == "" {
				break
			}
		}
		if !reflect.DeepEqual(got, want) {
			r.Fatalf("the store has %v, want %v", got, want)
		}
	}
}

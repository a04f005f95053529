package sweeps

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg/pgtest"
)

// TestSweeps: whatever machines do in whatever order, what was announced is never missing, a machine
// that lost its lease removes nothing, and what nobody needs goes.
func TestSweeps(t *testing.T) {
	pgtest.Shared(t)
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := flag.Set("rapid.checks", "25"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = flag.Set("rapid.checks", f.DefValue) })
	}
	rapid.Check(t, func(rt *rapid.T) {
		var dirs []string
		w := newWorld(t, func() string {
			dir, err := os.MkdirTemp("", "turn-sweeps-")
			if err != nil {
				rt.Fatal(err)
			}
			dirs = append(dirs, dir)
			return dir
		}, 3)
		defer func() {
			w.close()
			for _, dir := range dirs {
				_ = os.RemoveAll(dir)
			}
		}()
		w.run(rt)
	})
}

func object(n int) []byte { return bytes.Repeat([]byte{byte(n), byte(n * 7)}, 200+n) }

func (w *world) run(rt *rapid.T) {
	for range rapid.IntRange(5, 30).Draw(rt, "steps") {
		m := rapid.SampledFrom(w.machines).Draw(rt, "machine")
		if rapid.IntRange(0, 3).Draw(rt, "sweeps") > 0 {
			w.act(rt, m)
		} else {
			w.sweep(rt, m)
		}
	}
	w.settle(rt)
	for range 3 {
		w.sweepAlone(rt)
	}
	w.check(rt, w.machines[0], "after the last sweeps")
	w.check(rt, w.machines[1], "after the last sweeps")
	w.needed = map[turnstone.Digest]bool{}
	w.sweepAlone(rt)
	w.sweepAlone(rt)
	if n := len(w.bucket.blobs); n > 0 {
		rt.Fatalf("nothing is needed, and %d packs are left", n)
	}
}

// settle ends all turns, and lets everything arrive.
func (w *world) settle(rt *rapid.T) {
	for _, m := range w.machines {
		m.end()
	}
	w.bucket.arrive()
	if err := w.expire("%"); err != nil { // of crashed machines
		rt.Fatal(err)
	}
}

func (w *world) sweepAlone(rt *rapid.T) {
	m := w.machines[0]
	m.lost = false
	for {
		_, err := m.store.Sweep(context.Background(), w.marker(m))
		if err == nil {
			return
		}
		if !sameName(err) {
			rt.Fatal(err)
		}
	}
}

// sameName reports whether a pack was refused because it has the name of one that was deleted: these
// packs are small, and alike.
func sameName(err error) bool {
	return err != nil && strings.Contains(err.Error(), "has the name of a pack that was deleted")
}

// act is one step of a machine that does not sweep.
func (w *world) act(rt *rapid.T, m *machine) {
	switch rapid.SampledFrom([]string{"put", "put", "announce", "announce", "crash", "forget", "asleep",
		"late", "arrive", "read"}).Draw(rt, "step") {
	case "put":
		w.put(rt, m)
	case "announce":
		if m.batch != nil {
			_ = w.announce(m) // or it is refused
			m.end()
		}
	case "crash":
		m.end()
	case "forget":
		if len(w.needed) > 0 {
			all := make([]turnstone.Digest, 0, len(w.needed))
			for d := range w.needed {
				all = append(all, d)
			}
			slices.Sort(all)
			delete(w.needed, rapid.SampledFrom(all).Draw(rt, "forgotten"))
		}
	case "asleep":
		if err := w.expire("batch/%"); err != nil {
			rt.Fatal(err)
		}
	case "late":
		w.bucket.delay = true
	case "arrive":
		w.bucket.arrive()
	case "read":
		w.check(rt, m, "during the work")
	}
}

// put stores some objects in the machine's batch, and opens one if there is none.
func (w *world) put(rt *rapid.T, m *machine) {
	ctx := context.Background()
	if m.batch == nil && !w.begin(rt, m) {
		return
	}
	for range rapid.IntRange(1, 3).Draw(rt, "objects") {
		d, err := m.batch.Put(ctx, object(rapid.IntRange(0, 5).Draw(rt, "object")))
		if err != nil {
			m.end() // it was lost
			return
		}
		m.put = append(m.put, d)
	}
	if rapid.Bool().Draw(rt, "flush") && m.batch.Flush(ctx) != nil {
		m.end()
	}
}

// begin opens a batch, unless a machine sweeps alone.
func (w *world) begin(rt *rapid.T, m *machine) bool {
	ctx := context.Background()
	_, held, err := m.rows.Holder(ctx, alone)
	if err != nil {
		rt.Fatal(err)
	}
	if held {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond) //wait: it is meant to expire
		defer cancel()
		if _, err := m.store.Begin(short); err == nil {
			rt.Fatal("a batch began while a machine sweeps alone")
		}
		return false
	}
	if m.batch, err = m.store.Begin(ctx); err != nil {
		rt.Fatal(err)
	}
	m.asleep = false
	for _, o := range w.machines {
		o.lost = o.lost || o.alone // it sleeps, and comes back
	}
	return true
}

// sweep runs a sweep of m, while other machines work between any two of its steps. It may crash there,
// or lose its lease to another machine that sweeps, and come back.
func (w *world) sweep(rt *rapid.T, m *machine) {
	m.end()
	m.sweeper, m.lost = true, false
	w.depth++
	m.door.step = func(what string) error { return w.between(rt, m, what) }
	_, err := m.store.Sweep(context.Background(), w.marker(m))
	m.door.step = nil
	w.depth--
	m.sweeper = false
	switch {
	case errors.Is(err, errUnsafe):
		rt.Fatal(err)
	case err != nil && !errors.Is(err, errCrash) && !m.lost && !sameName(err):
		rt.Fatalf("a sweep failed: %v", err)
	}
	w.check(rt, m, "after a sweep")
}

func (w *world) between(rt *rapid.T, m *machine, what string) error {
	free := slices.DeleteFunc(slices.Clone(w.machines), func(o *machine) bool { return o.sweeper })
	if len(free) > 0 {
		for range rapid.IntRange(0, 2).Draw(rt, "between") {
			w.act(rt, rapid.SampledFrom(free).Draw(rt, "other"))
		}
	}
	if what == "waits" { // nobody works while it waits, in this test
		w.endBatches(rt)
	}
	switch n := rapid.IntRange(0, 19).Draw(rt, "event"); {
	case n == 0:
		return errCrash
	case n == 1: // it sleeps, and the others work
		if err := w.expire(alone); err != nil {
			rt.Fatal(err)
		}
	case n <= 3 && w.depth < 2 && len(free) > 0: // it sleeps, and another one sweeps
		if err := errors.Join(w.expire(sweep), w.expire(alone)); err != nil {
			rt.Fatal(err)
		}
		m.lost = true
		w.sweep(rt, rapid.SampledFrom(free).Draw(rt, "second"))
		if what == "waits" {
			w.endBatches(rt)
		}
	}
	return nil
}

// endBatches ends the batches of all machines, one way or another.
func (w *world) endBatches(rt *rapid.T) {
	for _, m := range w.machines {
		if m.batch == nil || m.asleep {
			continue
		}
		switch rapid.IntRange(0, 2).Draw(rt, "its end") {
		case 0:
			_ = w.announce(m)
			m.end()
		case 1:
			m.end()
		case 2: // it sleeps, and comes back later
			m.asleep = true
			if err := w.expire("batch/%"); err != nil {
				rt.Fatal(err)
			}
		}
	}
}

// begun returns a batch of m with an object.
func (w *world) begun(t *testing.T, m *machine, objects ...int) {
	t.Helper()
	batch, err := m.store.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.batch, m.put = batch, nil
	for _, n := range objects {
		d, err := batch.Put(t.Context(), object(n))
		if err != nil {
			t.Fatal(err)
		}
		m.put = append(m.put, d)
	}
}

// TestAwayBeforeAnnouncement: a machine is away after it has stored objects, or has found them. Another
// one deletes them, because nobody needs them. The first may not announce them.
func TestAwayBeforeAnnouncement(t *testing.T) {
	pgtest.Shared(t)
	for _, found := range []bool{false, true} {
		w := newWorld(t, t.TempDir, 2)
		a, b := w.machines[0], w.machines[1]
		w.begun(t, a, 1)
		if err := a.batch.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if found {
			a.end()
			w.begun(t, a, 1)
		}
		if err := w.expire("batch/%"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.store.Sweep(t.Context(), w.marker(b)); err != nil {
			t.Fatal(err)
		}
		if n := len(w.bucket.blobs); n != 0 {
			t.Errorf("%d packs are left", n)
		}
		if err := w.announce(a); turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("found %v: what was deleted is announced: %v", found, err)
		}
		w.close()
	}
}

// TestAwayAfterUpload: a machine is away between the upload of a pack and its entry in the index.
// Meanwhile another one deletes the pack. Then no batch of the first counts it as stored.
func TestAwayAfterUpload(t *testing.T) {
	pgtest.Shared(t)
	w := newWorld(t, t.TempDir, 2)
	defer w.close()
	a, b := w.machines[0], w.machines[1]
	ctx := t.Context()
	w.begun(t, a, 1)
	away := false
	a.door.step = func(what string) error {
		if what != "after put" || away {
			return nil
		}
		away = true
		if err := w.expire("batch/%"); err != nil {
			return err
		}
		_, err := b.store.Sweep(ctx, w.marker(b))
		if err != nil {
			return err
		}
		other, err := a.store.Begin(ctx) // which learns it
		if err == nil {
			err = other.Close()
		}
		return err
	}
	if err := a.batch.Flush(ctx); turnstone.KindOf(err) != turnstone.KindUnavailable || !away {
		t.Errorf("the pack was deleted, and Flush says %v", err)
	}
	a.door.step = nil
	a.end()
	if n := len(w.bucket.blobs); n != 0 {
		t.Errorf("%d packs are left", n)
	}
	w.begun(t, a, 1, 2) // its pack has another name
	if err := w.announce(a); err != nil {
		t.Fatal(err)
	}
	a.end()
	for d := range w.needed {
		if _, err := b.store.Get(ctx, d); err != nil {
			t.Error(err)
		}
	}
}

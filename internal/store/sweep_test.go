package store_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store"
)

func keepAll(all ...turnstone.Digest) store.Mark {
	return func(_ context.Context, keep func(turnstone.Digest) bool) error {
		for _, d := range all {
			keep(d)
		}
		return nil
	}
}

// TestSweep deletes in steps: kept objects stay readable, others are deleted, and the reported
// freed bytes are correct.
func TestSweep(t *testing.T) {
	s := open(t, t.TempDir())
	b := begin(t, s)
	large := noise(6<<20, 1)
	c := putContent(t, b, large)
	var objects [][]byte
	for i := range 50 {
		objects = append(objects, noise(20_000, i))
		put(t, b, objects[i])
	}
	check(t, b.Flush(t.Context()))
	check(t, b.Close())
	before, err := s.Usage(t.Context())
	check(t, err)
	needed, err := s.ContentObjects(t.Context(), c)
	check(t, err)
	for _, o := range objects[:10] {
		needed = append(needed, turnstone.DigestBytes(o))
	}

	got, err := s.Sweep(t.Context(), keepAll(needed...))
	check(t, err)
	if got.Kept != len(needed) {
		t.Errorf("%+v, want %d kept", got, len(needed))
	}
	got, err = s.Sweep(t.Context(), keepAll(needed[len(needed)-10:]...))
	check(t, err)
	after, err := s.Usage(t.Context())
	check(t, err)
	if after.Objects != 10 || got.Kept != 10 || got.PacksRemoved != 1 || got.PacksMade != 1 ||
		got.Objects != before.Objects-10 ||
		got.Freed != before.Stored-after.Stored {
		t.Errorf("%+v left %+v of %+v", got, after, before)
	}
	for i, o := range objects {
		if i < 10 {
			wantObject(t, s, o)
		} else if ok, err := s.Has(t.Context(), turnstone.DigestBytes(o)); ok || err != nil {
			t.Errorf("object %d is still there (%v)", i, err)
		}
	}
	if _, err := s.OpenContent(t.Context(), c); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("the large content: %v", err)
	}
	fsckClean(t, s)
	got, err = s.Sweep(t.Context(), keepAll())
	check(t, err)
	if u, err := s.Usage(t.Context()); err != nil || u != (turnstone.StoreUsage{}) ||
		got.Objects != 10 {
		t.Errorf("%+v left %+v, %v", got, u, err)
	}
}

// TestSweepMark checks that a failing mark deletes nothing, and that mark is called again for later
// objects.
func TestSweepMark(t *testing.T) {
	s := open(t, t.TempDir())
	b := begin(t, s)
	one := put(t, b, []byte("one"))
	check(t, b.Flush(t.Context()))
	check(t, b.Close())
	cause := errors.New("the list cannot be read")
	for n := range 2 {
		calls := 0
		_, err := s.Sweep(t.Context(), func(context.Context, func(turnstone.Digest) bool) error {
			if calls++; calls > n {
				return cause
			}
			return nil
		})
		if !errors.Is(err, cause) {
			t.Errorf("call %d fails: %v", n, err)
		}
	}
	if _, err := s.Sweep(t.Context(),
		keepAll("sha256:nonsense")); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("no digest: %v", err)
	}
	wantObject(t, s, []byte("one"))
	calls := 0
	_, err := s.Sweep(t.Context(),
		func(ctx context.Context, keep func(turnstone.Digest) bool) error {
			if calls++; calls == 1 { // a commit during marking
				b := begin(t, s)
				put(t, b, []byte("two"))
				check(t, b.Flush(t.Context()))
				check(t, b.Close())
				if !keep(one) || keep(one) {
					t.Error("keep does not tell the first call")
				}
				return nil
			}
			keep(turnstone.DigestBytes([]byte("two")))
			return nil
		})
	check(t, err)
	wantObject(t, s, []byte("one"))
	wantObject(t, s, []byte("two"))
}

// TestSweepWaits checks that a sweep waits for a batch, bounded by its context, and a batch for a
// sweep.
func TestSweepWaits(t *testing.T) {
	root := t.TempDir()
	s, other := open(t, root), open(t, root)
	b := begin(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if _, err := other.Sweep(ctx, keepAll()); turnstone.KindOf(err) != turnstone.KindTimeout {
		t.Errorf("a sweep beside a batch: %v", err)
	}
	check(t, b.Close())
	calls := 0
	_, err := other.Sweep(t.Context(), func(context.Context, func(turnstone.Digest) bool) error {
		if calls++; calls == 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) //wait: it is meant to expire
			defer cancel()
			if _, err := s.Begin(ctx); turnstone.KindOf(err) != turnstone.KindTimeout ||
				turnstone.HintOf(err) == "" {
				t.Errorf("a batch beside a sweep: %v", err)
			}
		}
		return nil
	})
	check(t, err)
}

// TestSweepBeside runs sweeps, commits and readers on the same folder, through independent stores.
// Committed and needed objects always exist.
func TestSweepBeside(t *testing.T) {
	root := t.TempDir()
	var mu sync.Mutex
	var needed [][]byte // committed
	stop := make(chan struct{})
	var sweeps sync.WaitGroup
	sweeper := open(t, root)
	sweeps.Go(func() {
		for {
			_, err := sweeper.Sweep(t.Context(),
				func(_ context.Context, keep func(turnstone.Digest) bool) error {
					mu.Lock()
					defer mu.Unlock()
					for _, p := range needed {
						keep(turnstone.DigestBytes(p))
					}
					return nil
				})
			if err != nil {
				t.Errorf("sweep: %v", err)
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond): //wait: a pause of a loop
			}
		}
	})
	var wg sync.WaitGroup
	for g := range 3 {
		s := open(t, root)
		wg.Go(func() {
			for i := range 25 {
				b, err := s.Begin(t.Context())
				if err != nil {
					t.Errorf("begin: %v", err)
					return
				}
				// Some are the same in all, and garbage for a while.
				ps := [][]byte{text(3000, i), noise(2000, g*1000+i), text(500, i%3)}
				for _, p := range append(ps, noise(50_000, g*77+i)) {
					if _, err := b.Put(t.Context(), p); err != nil {
						t.Errorf("put: %v", err)
					}
				}
				if err := b.Flush(t.Context()); err != nil {
					t.Errorf("flush: %v", err)
				}
				mu.Lock()
				if needed = append(needed, ps...); len(needed) > 90 {
					needed = needed[30:]
				}
				mine := bytes.Clone(needed[len(needed)-1])
				mu.Unlock()
				if err := b.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				got, err := s.Get(t.Context(), turnstone.DigestBytes(mine))
				if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound ||
					err == nil && !bytes.Equal(got, mine) {
					t.Errorf("get: %v", err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	sweeps.Wait()
	last := open(t, root)
	for _, p := range needed {
		wantObject(t, last, p)
	}
	fsckClean(t, last)
}

// TestTwoWriters: processes write the same objects concurrently.
func TestTwoWriters(t *testing.T) {
	root := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if !runChild(t, crash{Root: root, N: 1 << 30, Run: 5}) {
				t.Error("a commit did not end")
			}
		})
	}
	wg.Wait()
	s := open(t, root)
	for i := range 30 {
		wantObject(t, s, crashObject(5, i))
	}
	fsckClean(t, s)
	var all []turnstone.Digest
	for i := range 30 {
		all = append(all, turnstone.DigestBytes(crashObject(5, i)))
	}
	for range 20 { // many small packs become one
		b := begin(t, s)
		p := noise(100, len(all))
		all = append(all, put(t, b, p))
		check(t, b.Flush(t.Context()))
		check(t, b.Close())
	}
	_, err := s.Sweep(t.Context(), keepAll(all...))
	check(t, err)
	if packs := files(t, filepath.Join(root, "blobs", "packs"), "*"); len(packs) != 1 {
		t.Errorf("%d packs are left", len(packs))
	}
	if segments := files(t, filepath.Join(root, "store", "index"), "*"); len(segments) != 1 {
		t.Errorf("segments: %q", segments)
	}
	for _, d := range all {
		if _, err := s.Get(t.Context(), d); err != nil {
			t.Errorf("%v", err)
		}
	}
	fsckClean(t, s)
}

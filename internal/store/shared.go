package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/store/guard"
	"turnstone.dev/turnstone/internal/store/locks"
	"turnstone.dev/turnstone/internal/store/memory"
	"turnstone.dev/turnstone/internal/store/seal"
)

func (c *core) locks() locks.Locks { return locks.Locks{Dir: c.dir} }

// An entry keeps sweeps from deleting what its holder found in the store.
type entry struct {
	*locks.Lock
	visit guard.Visit // nil: the store is this machine's
}

func (e *entry) Release() {
	if e.visit != nil {
		e.visit.Release()
	}
	e.Lock.Release()
}

// enter waits for a deleting sweep, and reads what was deleted before.
func (s *Store) enter(ctx context.Context) (_ *entry, err error) {
	l, err := s.locks().Batch(ctx)
	if err != nil {
		return nil, err
	}
	e := &entry{Lock: l}
	if s.shared != nil {
		if e.visit, err = s.shared.Enter(ctx); err == nil {
			err = s.learn(ctx)
		}
	}
	if err == nil {
		err = s.refresh(ctx) // objects that were known before may have been deleted
	}
	if err != nil {
		e.Release()
		return nil, err
	}
	return e, nil
}

// watch ends the batch when other machines no longer respect it.
func (b *Batch) watch() {
	if b.lock.visit == nil {
		return
	}
	b.wg.Go(func() {
		select {
		case <-b.lock.visit.Lost():
			b.mu.Lock()
			defer b.mu.Unlock()
			b.lose(b.lock.visit.Cause())
			b.idle.Broadcast()
		case <-b.ctx.Done():
		}
	})
}

// seenFile has the position up to which removed packs are no longer in the index.
const seenFile = "removed"

// learn notes which packs are condemned, and drops from the index those that were removed.
func (s *Store) learn(ctx context.Context) error {
	s.learning.Lock() // an older answer must not replace a newer one
	defer s.learning.Unlock()
	path := filepath.Join(s.dir, seenFile)
	b, _ := os.ReadFile(path)
	seen, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // damaged: from the beginning
	condemned, removed, now, err := s.shared.News(ctx, seen)
	if err != nil {
		return err
	}
	if now > seen {
		drop := map[id]packInfo{}
		for _, p := range removed {
			drop[p] = packInfo{}
			s.packs.Forget(packName(p))
		}
		err := s.locked(ctx, func(ctx context.Context) error {
			if err := s.dropFromIndex(ctx, drop); err != nil {
				return err
			}
			return filestamp.WriteFile(path, []byte(strconv.FormatInt(now, 10)+"\n"), 0o600)
		})
		if err != nil {
			return fail("store.index", s.dir, err)
		}
	}
	all := map[id]bool{}
	for _, p := range condemned {
		all[p] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.condemned = all
	return nil
}

// notRemoved returns the packs without those that were removed: a late request may have put one again.
func (s *Store) notRemoved(ctx context.Context, packs []*newPack) ([]*newPack, error) {
	if s.shared == nil || len(packs) == 0 {
		return packs, nil
	}
	names := make([][32]byte, len(packs))
	for i, p := range packs {
		names[i] = p.id
	}
	removed, err := s.shared.Known(ctx, names)
	return slices.DeleteFunc(packs, func(p *newPack) bool { return removed[p.id] }), err
}

// removeAgain deletes packs that are there although they were removed.
func (s *Store) removeAgain(ctx context.Context) error {
	v, err := s.packsView(ctx)
	if err != nil {
		return err
	}
	known := v.packs()
	var names [][32]byte
	for info, err := range s.blobs.List(ctx, packPrefix) {
		if err != nil {
			return err
		}
		if p, ok := parsePackName(info.Name); ok && known[p].objects == 0 {
			names = append(names, p)
		}
	}
	if len(names) == 0 {
		return nil
	}
	removed, err := s.shared.Known(ctx, names)
	for p, was := range removed {
		if err == nil && was {
			err = s.blobs.Remove(ctx, packName(p))
		}
	}
	return err
}

func (s *Store) isCondemned(p id) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.condemned[p]
}

// Stored reports whether the batch, or a pack that no sweep has condemned, has the object d. Get also
// returns objects of condemned packs, which are about to be deleted unless a turn needs them.
func (b *Batch) Stored(ctx context.Context, d turnstone.Digest) (bool, error) {
	i, err := parseID("store.has", d)
	if err != nil {
		return false, err
	}
	_, have, err := b.has(ctx, i)
	return have, err
}

// Complete reports whether an object that is stored implies that those below it are: another machine
// may be about to delete them one by one.
func (b *Batch) Complete() bool { return b.s.shared == nil }

// maxPadding bounds the zero bytes between the header and the objects of a pack of a shared store: they
// make the name of each pack another one, as a late request may delete one that has the same objects.
const maxPadding = 1 << 10

// newPack returns an empty pack.
func (c *core) newPack(domain seal.ID) *pack {
	p := newPackIn(&c.slabs, domain)
	if c.shared != nil {
		p.data.Append(make([]byte, rand.IntN(maxPadding)))
	}
	return p
}

// putPack makes a finished pack durable.
func (c *core) putPack(ctx context.Context, name id, data *memory.Slabs) error {
	if c.shared != nil {
		known, err := c.shared.Known(ctx, [][32]byte{name})
		if err != nil {
			return err
		}
		if _, was := known[name]; was {
			return turnstone.Errorf("store.put", turnstone.KindUnavailable, packName(name),
				"has the name of a pack that was deleted").WithHint("try again")
		}
	}
	return c.blobs.Put(ctx, packName(name), data.Reader(), data.Len())
}

// sweepShared is sweep while other machines use the blobs.
func (w *sweep) sweepShared(ctx context.Context, mark func(context.Context) error) error {
	return w.s.shared.Sweep(ctx, func(ctx context.Context, x guard.Sweeping) error {
		// All batches that have put one of these packs are open by now, or have ended.
		if err := w.begin(ctx); err != nil {
			return err
		}
		if err := errors.Join(x.Condemn(ctx, nil), x.Wait(ctx)); err != nil {
			return err
		}
		if err := mark(ctx); err != nil {
			return err
		}
		if err := w.condemn(ctx, x); err != nil || len(w.left) == 0 {
			return err
		}
		// As on one machine: what is marked while no batch is open is all that is needed. After
		// Removed no batch finds the packs, so it does not matter when they are deleted.
		var gone map[id]*packUse
		err := x.Alone(ctx, func(ctx context.Context) error {
			err := mark(ctx)
			if err == nil {
				gone, err = w.remove(ctx, x)
			}
			return err
		})
		if err != nil {
			return err
		}
		return w.deletePacks(ctx, gone)
	})
}

// begin notes which packs the sweep may condemn, and which were condemned before.
func (w *sweep) begin(ctx context.Context) error {
	s := w.s
	if err := s.learn(ctx); err != nil {
		return err
	}
	if err := s.adopt(ctx); err != nil {
		return err
	}
	if err := s.removeAgain(ctx); err != nil {
		return err
	}
	v, err := s.packsView(ctx)
	if err != nil {
		return err
	}
	s.mu.RLock()
	w.left = maps.Clone(s.condemned)
	s.mu.RUnlock()
	w.may = v.packs()
	return nil
}

// condemn copies what is needed of the packs with too much garbage, and condemns them.
func (w *sweep) condemn(ctx context.Context, x guard.Sweeping) error {
	uses, err := w.uses(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(uses, func(p id, _ *packUse) bool { return w.may[p].objects == 0 || w.left[p] })
	chosen, err := w.copyOut(ctx, w.choose(uses))
	if err != nil {
		return err
	}
	if err := x.Condemn(ctx, namesOf(chosen)); err != nil {
		return err
	}
	for p := range chosen {
		w.left[p] = true
	}
	return w.s.learn(ctx)
}

func namesOf(packs map[id]*packUse) [][32]byte {
	var names [][32]byte
	for p := range packs {
		names = append(names, p)
	}
	return names
}

// remove copies what is needed of all condemned packs, and notes that they no longer exist.
func (w *sweep) remove(ctx context.Context, x guard.Sweeping) (map[id]*packUse, error) {
	w.swept.Objects = 0
	uses, err := w.uses(ctx)
	if err != nil {
		return nil, err
	}
	var packs []*packUse
	for p := range w.left {
		if uses[p] == nil {
			uses[p] = &packUse{packInfo: packInfo{id: p}} // it is not in the bucket
		}
		packs = append(packs, uses[p])
	}
	slices.SortFunc(packs, comparePacks)
	gone, err := w.copyOut(ctx, packs)
	if err != nil {
		return nil, err
	}
	return gone, x.Removed(ctx, namesOf(gone))
}

// deletePacks deletes packs that were noted as removed. What it leaves the next sweep deletes.
func (w *sweep) deletePacks(ctx context.Context, gone map[id]*packUse) error {
	if err := w.s.learn(ctx); err != nil {
		return err
	}
	for p, use := range gone {
		if err := ctx.Err(); err != nil { // another machine may sweep
			return fmt.Errorf("deleting: %w", context.Cause(ctx))
		}
		if err := w.s.blobs.Remove(ctx, packName(p)); err != nil {
			return err
		}
		w.swept.PacksRemoved++
		w.swept.Freed += use.size
	}
	return nil
}

// copyOut is rewrite with the new packs in the index.
func (w *sweep) copyOut(ctx context.Context, packs []*packUse) (map[id]*packUse, error) {
	w.made = nil
	whole, err := w.rewrite(ctx, packs)
	if err == nil && len(w.made) > 0 {
		err = w.s.addPacks(ctx, w.made)
	}
	return whole, err
}

// Exclusive calls f while no batch is open, in any process of this machine, and no Sweep runs on any; it
// waits for that until ctx is done. f must not begin a batch. Exclusive is for changes of alternates'
// contents, which a batch relies on.
func (s *Store) Exclusive(ctx context.Context, f func() error) error {
	if s.shared == nil {
		return s.exclusive(ctx, f)
	}
	return s.shared.Sweep(ctx, func(ctx context.Context, _ guard.Sweeping) error {
		if err := s.learn(ctx); err != nil { // f asks what the store has
			return err
		}
		return s.exclusive(ctx, f)
	})
}

func (s *Store) exclusive(ctx context.Context, f func() error) error {
	l, err := s.locks().Sweep(ctx)
	if err != nil {
		return err
	}
	defer l.Release()
	return f()
}

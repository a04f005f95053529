package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/seal"
)

// A Mark calls keep for every needed object, with its digest, or with its name if it is sealed: see
// Batch.Needs. keep reports whether this is the first call for d: the
// references of an object that was kept before need not be visited again because objects do not
// change.
type Mark func(ctx context.Context, keep func(d turnstone.Digest) bool) error

const (
	// A pack is rewritten if at least this part of it is garbage: 1/4.
	garbagePart = 4
	// Packs smaller than smallPack are joined if there are at least manySmall.
	smallPack = packTarget / 8
	manySmall = 16
)

// Sweep deletes the objects that mark does not keep. It calls mark twice: once while batches
// continue, and once, for later objects, while no batch is open; Sweep waits for open batches until
// ctx is done. Packs with too much garbage are rewritten. An unreadable object is not deleted. It
// concerns the objects of all domains, and needs no keys: sealed objects are copied as they are.
func (s *Store) Sweep(ctx context.Context, mark Mark) (turnstone.StoreSwept, error) {
	return s.sweep(ctx, mark, false)
}

// SweepAll is Sweep that rewrites each pack with an unneeded object, so that nothing of these is
// left.
func (s *Store) SweepAll(ctx context.Context, mark Mark) (turnstone.StoreSwept, error) {
	return s.sweep(ctx, mark, true)
}

func (s *Store) sweep(ctx context.Context, mark Mark, all bool) (turnstone.StoreSwept, error) {
	// In the public view, which overwrites nothing that is to be copied.
	w := &sweep{s: s.In(nil), all: all, keep: map[id]bool{}}
	var malformed error
	keep := func(d turnstone.Digest) bool {
		i, err := parseID("store.sweep", d)
		if err != nil {
			malformed = err
			return false
		}
		if w.keep[i] {
			return false
		}
		w.keep[i] = true
		return true
	}
	if s.shared != nil {
		err := w.sweepShared(ctx, func(ctx context.Context) error {
			return errors.Join(mark(ctx, keep), malformed)
		})
		return w.swept, fail("store.sweep", s.dir, err)
	}
	if err := mark(ctx, keep); err != nil {
		return turnstone.StoreSwept{}, err
	}
	l, err := s.locks().Sweep(ctx)
	if err != nil {
		return turnstone.StoreSwept{}, err
	}
	defer l.Release()
	if err := mark(ctx, keep); err != nil {
		return turnstone.StoreSwept{}, err
	}
	if malformed != nil { // a mark with a malformed digest may miss others
		return turnstone.StoreSwept{}, malformed
	}
	// No process may adopt the packs that are being removed.
	x, err := s.locks().Index(ctx)
	if err != nil {
		return turnstone.StoreSwept{}, err
	}
	defer x.Release()
	err = w.run(ctx)
	return w.swept, fail("store.sweep", s.dir, err)
}

// A sweep is the state of a Sweep after marking.
type sweep struct {
	s     *Store
	all   bool // rewrite each pack with garbage
	keep  map[id]bool
	swept turnstone.StoreSwept

	old    []*segment
	open   *pack
	made   []*newPack
	copied map[id]bool
	moved  map[id]bool // the packs that are copied from

	// of a shared store
	left map[id]bool     // the condemned packs
	may  map[id]packInfo // those that may be condemned
}

// A packUse counts the needed parts of a pack.
type packUse struct {
	packInfo
	live    []packEntry
	stored  int64 // bytes of the live objects that are in no other pack
	garbage int64 // bytes of the other objects
}

func (w *sweep) run(ctx context.Context) error {
	if err := w.s.adoptLocked(ctx); err != nil && !errors.Is(err, errSegment) {
		return err
	}
	uses, err := w.uses(ctx)
	if errors.Is(err, errSegment) {
		if err := w.s.repairLocked(ctx); err != nil {
			return err
		}
		uses, err = w.uses(ctx)
	}
	if err != nil {
		return err
	}
	remove, err := w.rewrite(ctx, w.choose(uses))
	if err != nil || len(remove) == 0 {
		return err
	}
	// From here on the new packs are durable. After any interruption each object is in the old pack
	// or the new pack, and its pack is in the index or is adopted again.
	drop := func(p id) bool { return remove[p] != nil }
	if err := w.s.index.replace(ctx, w.old, w.made, drop); err != nil {
		return err
	}
	for p, use := range remove {
		if err := w.s.blobs.Remove(ctx, packName(p)); err != nil {
			return err
		}
		w.s.packs.Forget(packName(p))
		w.swept.PacksRemoved++
		w.swept.Freed += use.size
	}
	return nil
}

// uses computes the use of each pack.
func (w *sweep) uses(ctx context.Context) (map[id]*packUse, error) {
	v, err := w.s.index.refresh()
	if err != nil {
		return nil, err
	}
	if len(v.broken) > 0 {
		return nil, segErr(v.broken[0], errors.New("the index is not readable"))
	}
	w.old, w.swept.Kept = v.segs, 0
	uses := map[id]*packUse{}
	for p, info := range v.packs() {
		uses[p] = &packUse{packInfo: info}
	}
	var last id // equal ids are adjacent
	for p, err := range v.all(ctx) {
		if err != nil {
			return nil, err
		}
		use, needed := uses[p.pack], w.keep[p.id]
		if needed {
			use.live = append(use.live, p.packEntry)
		}
		if w.left[p.pack] { // no copy in it counts
			continue
		}
		if needed && (w.swept.Kept == 0 || p.id != last) {
			w.swept.Kept++
			use.stored += int64(p.stored)
			last = p.id
		} else { // garbage, or a second copy
			use.garbage += int64(p.stored) + packEntrySize
		}
	}
	return uses, nil
}

// choose returns the packs to rewrite or remove.
func (w *sweep) choose(uses map[id]*packUse) []*packUse {
	var all []*packUse
	small := map[seal.ID][]*packUse{}
	for _, use := range uses {
		switch {
		case len(use.live) == 0 || w.all && use.garbage > 0 || use.garbage*garbagePart >= use.stored+use.garbage:
			all = append(all, use)
		case use.size < smallPack:
			small[use.domain] = append(small[use.domain], use)
		}
	}
	for _, packs := range small {
		if len(packs) >= manySmall {
			all = append(all, packs...)
		}
	}
	// In a fixed order, so that sweeping the same store has the same result; one domain after
	// another, because a pack has objects of one domain.
	slices.SortFunc(all, comparePacks)
	return all
}

func comparePacks(a, b *packUse) int {
	return cmp.Or(bytes.Compare(a.domain[:], b.domain[:]), bytes.Compare(a.id[:], b.id[:]))
}

// rewrite copies the needed objects of the packs to new packs, and returns the packs to remove.
func (w *sweep) rewrite(ctx context.Context, packs []*packUse) (map[id]*packUse, error) {
	w.copied, w.moved = map[id]bool{}, map[id]bool{}
	maps.Copy(w.moved, w.left)
	for _, use := range packs {
		w.moved[use.id] = true
	}
	remove := map[id]*packUse{}
	for _, use := range packs {
		whole, err := w.copyPack(ctx, use)
		if err != nil {
			return nil, err
		}
		if whole {
			remove[use.id] = use
			w.swept.Objects += int(use.objects) - len(use.live)
		}
	}
	if err := w.flush(ctx); err != nil {
		return nil, err
	}
	// A new pack may equal an existing pack: the same objects in the same order.
	for _, p := range w.made {
		delete(remove, p.id)
	}
	return remove, nil
}

// copyPack copies the needed objects of a pack; false means that an object is unreadable and has no
// other copy, so that the pack must stay.
func (w *sweep) copyPack(ctx context.Context, use *packUse) (bool, error) {
	slices.SortFunc(use.live, func(a, b packEntry) int { return int(int64(a.off) - int64(b.off)) })
	for _, e := range use.live {
		if w.copied[e.id] || w.stays(ctx, e.id) {
			continue
		}
		p := place{packEntry: e, pack: use.id, domain: use.domain}
		stored, err := w.s.load(ctx, p)
		if err == nil {
			if derr := w.s.verify(stored, p); derr != nil {
				err = damaged("store.sweep", string(e.id.digest()), derr)
			}
		}
		if fatal(err) {
			return false, err
		}
		if err != nil {
			if !w.s.readable(ctx, e.id) {
				return false, nil
			}
			continue
		}
		if err := w.append(ctx, e, use.domain, stored); err != nil {
			return false, err
		}
		w.copied[e.id] = true
	}
	return true, nil
}

// stays reports whether a remaining pack has a good copy of i.
func (w *sweep) stays(ctx context.Context, i id) bool {
	places, err := w.s.find(ctx, i)
	if err != nil {
		return false
	}
	for _, p := range places {
		if !w.moved[p.pack] {
			if w.s.intact(ctx, p) == nil {
				return true
			}
		}
	}
	return false
}

// append adds an object to the open pack of its domain.
func (w *sweep) append(ctx context.Context, e packEntry, domain seal.ID, stored []byte) error {
	if w.open != nil && (w.open.domain != domain || w.open.data.Len() >= packTarget) {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	if w.open == nil {
		w.open = w.s.newPack(domain)
	}
	w.open.add(e, stored)
	return nil
}

// flush makes the open pack durable.
func (w *sweep) flush(ctx context.Context) error {
	p := w.open
	if p == nil {
		return nil
	}
	w.open = nil
	defer p.data.Free()
	table, name := p.table()
	p.id = name
	p.data.Append(table)
	if err := w.s.putPack(ctx, name, p.data); err != nil {
		return err
	}
	w.made = append(w.made, p.indexed())
	w.swept.PacksMade++
	w.swept.Freed -= p.data.Len()
	return nil
}

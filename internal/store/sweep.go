package store

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"syscall"

	"turnstone.dev/turnstone"
)

// A Mark calls keep for every object that is needed. keep tells whether it is the
// first call for d: what an object names that was kept before need not be looked at
// again, since objects do not change.
type Mark func(ctx context.Context, keep func(d turnstone.Digest) bool) error

// Swept says what Sweep did.
type Swept struct {
	Objects      int   `json:"objects"` // deleted
	Kept         int   `json:"kept"`
	PacksRemoved int   `json:"packs_removed"`
	PacksMade    int   `json:"packs_made"`
	Freed        int64 `json:"freed_bytes"` // by the packs removed, less those made
}

const (
	// A pack is written again when this part of it, or more, is not needed: 1/4.
	garbagePart = 4
	// Packs smaller than smallPack are joined when there are at least manySmall.
	smallPack = packTarget / 8
	manySmall = 16
)

// Sweep deletes the objects that mark does not keep. mark is called twice: once
// while batches go on, and once more, for what came since, while none is open; to
// that end Sweep waits for those that are, until ctx is done. Packs of which too much
// is not needed are written again. An object that cannot be read is not deleted by this.
func (s *Store) Sweep(ctx context.Context, mark Mark) (Swept, error) {
	w := &sweep{s: s, keep: map[id]bool{}}
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
	if err := mark(ctx, keep); err != nil {
		return Swept{}, err
	}
	l, err := s.exclusiveGC(ctx)
	if err != nil {
		return Swept{}, err
	}
	defer l.release()
	if err := mark(ctx, keep); err != nil {
		return Swept{}, err
	}
	if malformed != nil { // who names one wrongly may miss others
		return Swept{}, malformed
	}
	// Nobody may take the packs that are removed for forgotten ones.
	x, err := acquire(ctx, s.dir, lockIndex, syscall.LOCK_EX)
	if err != nil {
		return Swept{}, err
	}
	defer x.release()
	err = w.run(ctx)
	return w.swept, fail("store.sweep", s.dir, err)
}

// A sweep is one run of Sweep after its marking.
type sweep struct {
	s     *Store
	keep  map[id]bool
	swept Swept

	old    []*segment
	open   *pack
	made   []*newPack
	copied map[id]bool
	moved  map[id]bool // the packs that are copied from
}

// A packUse is how much of a pack is needed.
type packUse struct {
	packInfo
	live    []packEntry
	stored  int64 // bytes of the live ones that are not in another pack, too
	garbage int64 // bytes of the others
}

func (w *sweep) run(ctx context.Context) error {
	if err := w.s.adoptLocked(ctx, nil); err != nil && !errors.Is(err, errSegment) {
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
	// From here on the new packs are durable. Whatever ends this, each object is in
	// the old pack or the new one, and in the index, or its pack is adopted again.
	drop := func(p id) bool { return remove[p] != nil }
	if err := w.s.index.replace(ctx, w.old, w.made, drop); err != nil {
		return err
	}
	for p, use := range remove {
		if err := w.s.packs.blobs.Remove(ctx, packName(p)); err != nil {
			return err
		}
		w.s.packs.forget(packName(p))
		w.swept.PacksRemoved++
		w.swept.Freed += use.size
	}
	return nil
}

// uses finds out how much of each pack is needed.
func (w *sweep) uses(ctx context.Context) (map[id]*packUse, error) {
	v, err := w.s.index.refresh()
	if err != nil {
		return nil, err
	}
	if len(v.broken) > 0 {
		return nil, segErr(v.broken[0], errors.New("it cannot be read"))
	}
	w.old, w.swept = v.segs, Swept{}
	uses := map[id]*packUse{}
	for p, info := range v.packs() {
		uses[p] = &packUse{packInfo: info}
	}
	var last id // the same ids follow each other
	for p, err := range v.all(ctx) {
		if err != nil {
			return nil, err
		}
		use, needed := uses[p.pack], w.keep[p.id]
		if needed {
			use.live = append(use.live, p.packEntry)
		}
		if needed && (w.swept.Kept == 0 || p.id != last) {
			w.swept.Kept++
			use.stored += int64(p.stored)
			last = p.id
		} else { // nobody needs it, or it is a second copy
			use.garbage += int64(p.stored) + packEntrySize
		}
	}
	return uses, nil
}

// choose returns the packs that are not to stay as they are.
func (w *sweep) choose(uses map[id]*packUse) []*packUse {
	var small, all []*packUse
	for _, use := range uses {
		switch {
		case len(use.live) == 0 || use.garbage*garbagePart >= use.stored+use.garbage:
			all = append(all, use)
		case use.size < smallPack:
			small = append(small, use)
		}
	}
	if len(small) >= manySmall {
		all = append(all, small...)
	}
	// In a fixed order, so that the same store is swept the same way.
	slices.SortFunc(all, func(a, b *packUse) int { return bytes.Compare(a.id[:], b.id[:]) })
	return all
}

// rewrite copies what is needed of the packs into new ones, and returns those
// that can be removed.
func (w *sweep) rewrite(ctx context.Context, packs []*packUse) (map[id]*packUse, error) {
	w.copied, w.moved = map[id]bool{}, map[id]bool{}
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
	// A pack that was made may be one that was there: the same objects in the same order.
	for _, p := range w.made {
		delete(remove, p.id)
	}
	return remove, nil
}

// copyPack copies what is needed of a pack; false means that an object in it cannot
// be read, nor has another copy, so that the pack has to stay.
func (w *sweep) copyPack(ctx context.Context, use *packUse) (bool, error) {
	slices.SortFunc(use.live, func(a, b packEntry) int { return int(int64(a.off) - int64(b.off)) })
	for _, e := range use.live {
		if w.copied[e.id] || w.stays(ctx, e.id) {
			continue
		}
		stored := make([]byte, e.stored)
		err := w.s.packs.readAt(ctx, packName(use.id), stored, int64(e.off))
		if err == nil {
			if _, derr := w.s.codec.decode(stored, e); derr != nil {
				err = damaged("store.sweep", string(e.id.digest()), derr)
			}
		}
		if kind := turnstone.KindOf(err); err != nil && kind != turnstone.KindIntegrity && kind != turnstone.KindInvalid && kind != turnstone.KindNotFound {
			return false, err
		}
		if err != nil {
			if !w.s.readable(ctx, e.id) {
				return false, nil
			}
			continue
		}
		if w.open == nil {
			w.open = newPackIn(&w.s.slabs)
		}
		w.open.add(e.id, stored, int(e.size))
		w.copied[e.id] = true
		if w.open.data.n >= packTarget {
			if err := w.flush(ctx); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// stays tells whether a pack that stays has a good copy of i.
func (w *sweep) stays(ctx context.Context, i id) bool {
	places, err := w.s.find(ctx, i)
	if err != nil {
		return false
	}
	for _, p := range places {
		if !w.moved[p.pack] {
			if _, err := w.s.read(ctx, p); err == nil {
				return true
			}
		}
	}
	return false
}

// flush makes the open pack durable.
func (w *sweep) flush(ctx context.Context) error {
	p := w.open
	if p == nil {
		return nil
	}
	w.open = nil
	defer p.data.free()
	table, name := encodeTable(p.entries)
	p.id = name
	p.data.append(table)
	if err := w.s.packs.blobs.Put(ctx, packName(name), p.data.reader(), p.data.n); err != nil {
		return err
	}
	w.made = append(w.made, p.indexed())
	w.swept.PacksMade++
	w.swept.Freed -= p.data.n
	return nil
}

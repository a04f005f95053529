package store

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/seal"
)

// CopyFrom copies objects with the given names from another store, unless s has them. It needs no
// key: sealed objects are verified by their checksums and copied as they are, public objects are
// verified completely. When CopyFrom returns, the copies are durable and in the index. An open batch
// of s keeps a sweep from deleting them. An object that is missing or damaged in from is an error of
// kind NotFound or Integrity; the objects before it may have been copied. It returns the number of
// the copied objects.
func (s *Store) CopyFrom(ctx context.Context, from *Store, names []turnstone.Digest) (int, error) {
	for _, locked := range []*Store{s, from} {
		l, err := locked.enter(ctx)
		if err != nil {
			return 0, err
		}
		defer l.Release()
	}
	places, err := s.lacks(ctx, from, names)
	if err != nil {
		return 0, err
	}
	w := &sweep{s: s.In(nil)}
	defer func() {
		if w.open != nil { // after an error
			w.open.data.Free()
		}
	}()
	public := from.In(nil)
	for _, p := range places {
		stored, err := public.load(ctx, p)
		if err != nil {
			return 0, err
		}
		if err := public.verify(stored, p); err != nil {
			return 0, damaged("store.copy", subject(p), err)
		}
		if err := w.append(ctx, p.packEntry, p.domain, stored); err != nil {
			return 0, err
		}
	}
	if err := w.flush(ctx); err != nil || len(w.made) == 0 {
		return 0, err
	}
	return len(places), s.addPacks(ctx, w.made)
}

// lacks returns the places in from of the named objects that s does not have, by domain and in the
// order in which from has them.
func (s *Store) lacks(ctx context.Context, from *Store, names []turnstone.Digest) ([]place, error) {
	var places []place
	seen := map[id]bool{}
	for _, n := range names {
		i, err := parseID("store.copy", n)
		if err != nil {
			return nil, err
		}
		if have, err := s.HasName(ctx, n); err != nil || have || seen[i] {
			if err != nil {
				return nil, err
			}
			continue
		}
		seen[i] = true
		p, err := from.good(ctx, i)
		if err != nil {
			return nil, err
		}
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(bytes.Compare(a.domain[:], b.domain[:]), bytes.Compare(a.pack[:], b.pack[:]),
			cmp.Compare(a.off, b.off))
	})
	return places, nil
}

// good returns a place of the object with the name i: an intact one if there are several.
func (s *Store) good(ctx context.Context, i id) (place, error) {
	places, err := s.find(ctx, i)
	if err != nil {
		return place{}, err
	}
	if len(places) == 0 {
		return place{}, turnstone.Errorf("store.copy", turnstone.KindNotFound, string(i.digest()),
			"the object is not in the store")
	}
	for _, p := range places[:len(places)-1] {
		if s.In(nil).intact(ctx, p) == nil {
			return p, nil
		}
	}
	return places[len(places)-1], nil
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

package store

import (
	"context"
	"errors"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/guard"
	"turnstone.dev/turnstone/internal/store/seal"
)

// RemoveDomain removes all objects of a domain: their packs, their entries in the index, and what
// is cached of them. It needs no key. It waits for open batches until ctx is done. The removal is
// durable when RemoveDomain returns; other processes notice it when they read the index again, as
// they do for a batch. After an error or a crash each object is either complete or removed; another
// call continues.
func (s *Store) RemoveDomain(ctx context.Context, domain seal.ID) (turnstone.StoreSwept, error) {
	const op = "store.remove"
	var sum turnstone.StoreSwept
	if domain.IsZero() {
		return sum, turnstone.Errorf(op, turnstone.KindInvalid, "", "no domain is named")
	}
	if s.shared == nil {
		return s.removeDomain(ctx, domain, func([][32]byte) error { return nil })
	}
	err := s.shared.Sweep(ctx, func(ctx context.Context, x guard.Sweeping) (err error) {
		sum, err = s.removeDomain(ctx, domain, func(packs [][32]byte) error {
			if err := x.Condemn(ctx, packs); err != nil {
				return err
			}
			return x.Removed(ctx, packs) // nobody can use them
		})
		return err
	})
	return sum, err
}

// removeDomain is RemoveDomain that calls before with the packs, before it deletes them.
func (s *Store) removeDomain(ctx context.Context, domain seal.ID,
	before func(packs [][32]byte) error) (sum turnstone.StoreSwept, err error) {
	const op = "store.remove"
	l, err := s.locks().Sweep(ctx)
	if err != nil {
		return sum, err
	}
	defer l.Release()
	x, err := s.locks().Index(ctx)
	if err != nil {
		return sum, err
	}
	defer x.Release()
	// As in a sweep, the index is changed first: what remains after a crash is adopted again.
	packs, err := s.packsOf(ctx, domain)
	if err != nil {
		return sum, fail(op, s.dir, err)
	}
	if err := s.dropFromIndex(ctx, packs); err != nil {
		return sum, fail(op, s.dir, err)
	}
	var names [][32]byte
	for p := range packs {
		names = append(names, p)
	}
	if err := before(names); err != nil {
		return sum, err
	}
	for p, info := range packs {
		if err := s.blobs.Remove(ctx, packName(p)); err != nil {
			return sum, err
		}
		s.packs.Forget(packName(p))
		sum.PacksRemoved++
		sum.Objects += int(info.objects)
		sum.Freed += info.size
	}
	if b, ok := s.blobs.(blob.Syncer); ok {
		if err := b.Sync(ctx, packPrefix); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// packsOf returns the packs of a domain, also those whose tables are damaged and that the index
// therefore lacks. The caller holds lockIndex.
func (s *Store) packsOf(ctx context.Context, domain seal.ID) (map[id]packInfo, error) {
	if err := s.repairLocked(ctx); err != nil {
		return nil, err
	}
	v, err := s.index.current()
	if err != nil {
		return nil, err
	}
	all, known := map[id]packInfo{}, v.packs()
	for p, info := range known {
		if info.domain == domain {
			all[p] = info
		}
	}
	for info, err := range s.blobs.List(ctx, packPrefix) {
		if err != nil {
			return nil, err
		}
		p, ok := parsePackName(info.Name)
		if !ok || known[p].objects > 0 {
			continue
		}
		of, err := s.readHeader(ctx, info)
		if err != nil {
			return nil, err
		}
		if of == domain {
			all[p] = packInfo{id: p, size: info.Size, domain: of}
		}
	}
	return all, nil
}

// readHeader returns the domain in the header of a pack; zero if there is none.
func (s *Store) readHeader(ctx context.Context, info blob.Info) (seal.ID, error) {
	h := make([]byte, len(sealedMagic)+len(seal.ID{}))
	if info.Size < int64(len(h)) {
		return seal.ID{}, nil
	}
	rc, err := s.blobs.Get(ctx, info.Name, 0, int64(len(h)))
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		return seal.ID{}, nil
	} else if err != nil {
		return seal.ID{}, err
	}
	_, err = io.ReadFull(rc, h)
	if err := errors.Join(err, rc.Close()); err != nil {
		return seal.ID{}, blob.Error("store.remove", info.Name, err)
	}
	if string(h[:len(sealedMagic)]) != sealedMagic {
		return seal.ID{}, nil
	}
	return seal.ID(h[len(sealedMagic):]), nil
}

// dropFromIndex durably removes packs from the index, and their objects from the list of damaged
// ones. The caller holds lockIndex.
func (s *Store) dropFromIndex(ctx context.Context, packs map[id]packInfo) error {
	v, err := s.index.refresh()
	if err != nil {
		return err
	}
	drop := func(p id) bool { _, ok := packs[p]; return ok }
	var old []*segment
	bad := s.bad.All()
	for _, seg := range v.segs {
		has := false
		for _, p := range seg.packs {
			has = has || drop(p.id)
		}
		if !has {
			continue
		}
		old = append(old, seg)
		if len(bad) == 0 {
			continue
		}
		for p, err := range seg.all() {
			if err != nil {
				return err
			}
			if drop(p.pack) {
				delete(bad, p.id)
			}
		}
	}
	if len(old) > 0 {
		if err := s.index.replace(ctx, old, nil, drop); err != nil {
			return err
		}
	}
	if err := s.bad.Set(bad); err != nil {
		return err
	}
	s.index.removeTmp()
	if err := s.index.fault("index-fsync"); err != nil {
		return err
	}
	if err := filestamp.SyncDir(s.index.dir); err != nil {
		return err
	}
	return filestamp.SyncDir(s.dir)
}

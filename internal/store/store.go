// Package store stores objects: byte strings named by their SHA-256, compressed, with many objects
// in a pack, which is a blob. Large contents are cut into chunks at positions that depend on the
// content, so that common parts of two versions are stored once. The package uses digests without
// knowing the meaning of objects. docs/store.md describes the formats, durability, and the deletion
// of objects.
package store

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/badlist"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/blob/windows"
	"turnstone.dev/turnstone/internal/store/codec"
	"turnstone.dev/turnstone/internal/store/guard"
	"turnstone.dev/turnstone/internal/store/memory"
	"turnstone.dev/turnstone/internal/store/seal"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Options are for tests. The zero value is correct otherwise.
type Options struct {
	// Fault, if set, is called before every write, fsync, rename and removal in the store's
	// directory; its error replaces the operation. Tests end the process in it.
	Fault func(op string) error
	// Shared is not only for tests: other machines have the same blobs. nil: none has.
	Shared guard.Shared
}

// A Store stores objects. It is a view of the objects in a directory: see In. Its methods are safe
// for concurrent use, also by several processes on the same directory.
type Store struct {
	*core
	domain *seal.Domain   // nil: puts are public
	also   []*seal.Domain // domains to read from
}

// A core is what the views of a store share.
type core struct {
	dir    string
	blobs  blob.Store
	shared guard.Shared // nil: the blobs are this machine's
	packs  *windows.Reader
	index  index
	codec  *codec.Codec
	slabs  memory.SlabPool
	bufs   memory.Pool
	cores  int

	// Objects found damaged or missing count as absent when they are put again: the store heals through
	// normal writes.
	bad badlist.List

	mu         sync.RWMutex
	alternates []Alternate
	learning   sync.Mutex  // held by learn
	condemned  map[id]bool // packs that are about to be deleted: their objects are not stored
}

var (
	_ tree.Reader = (*Store)(nil)
	_ tree.Writer = (*Batch)(nil)
)

// Open opens the store whose packs are in blobs. dir, which is created if missing, contains the
// local index and the locks. Open reads nothing.
func Open(ctx context.Context, dir string, blobs blob.Store, opts Options) (*Store, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("store.open", dir, err)
	}
	if opts.Fault == nil {
		opts.Fault = func(string) error { return nil }
	}
	segments := filepath.Join(dir, "index")
	if err := os.MkdirAll(segments, 0o700); err != nil {
		return nil, turnstone.NewError("store.open", turnstone.KindUnavailable, dir, err).
			WithHint("use a folder that you can write")
	}
	s := &Store{core: &core{dir: dir, index: index{dir: segments, fault: opts.Fault},
		blobs: blobs, shared: opts.Shared, packs: windows.New(blobs), cores: runtime.GOMAXPROCS(0)}}
	s.codec = codec.New(s.cores)
	s.bad.Path, s.bad.Fault = filepath.Join(dir, "damaged"), opts.Fault
	return s, nil
}

// Close releases the memory of the store and its views. Close batches first.
func (s *Store) Close() error {
	s.codec.Close()
	return nil
}

// AddAlternate adds a to the places where the store searches contents.
func (s *Store) AddAlternate(a Alternate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alternates = append(s.alternates[:len(s.alternates):len(s.alternates)], a)
}

func (s *Store) others() []Alternate {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.alternates
}

// Get returns the object d. The error is of kind NotFound if there is none, of kind Integrity if it
// is damaged and there is no other copy, and of kind Unavailable if the view's domain was erased, or
// d is the name of an object that is sealed.
func (s *Store) Get(ctx context.Context, d turnstone.Digest) ([]byte, error) {
	i, err := parseID("store.get", d)
	if err != nil {
		return nil, err
	}
	return s.get(ctx, i)
}

// get searches the object in the known index, then in later additions of other processes, then in
// packs that are in no index.
func (s *Store) get(ctx context.Context, i id) ([]byte, error) {
	targets, err := s.targets(i)
	if err != nil {
		return nil, err
	}
	var lastErr error
	for _, prepare := range []func(context.Context) error{nil, s.refresh, s.adopt, s.adoptLate} {
		if prepare != nil {
			if err := prepare(ctx); err != nil {
				return nil, err
			}
		}
		lastErr = nil // a place may be gone since: its pack was removed
		for _, t := range targets {
			b, ok, err := s.getTarget(ctx, t, i)
			if ok || fatal(err) {
				return b, err
			}
			lastErr = cmp.Or(err, lastErr)
		}
		if turnstone.KindOf(lastErr) == turnstone.KindIntegrity && prepare != nil {
			return nil, lastErr
		}
	}
	if lastErr != nil {
		return nil, damaged("store.get", string(i.digest()), lastErr) // its pack is missing
	}
	return nil, turnstone.Errorf("store.get", turnstone.KindNotFound, string(i.digest()),
		"the object is not in the store")
}

// fatal reports whether err ends a search: it does not concern a single copy of an object.
func fatal(err error) bool {
	kind := turnstone.KindOf(err)
	return err != nil && kind != turnstone.KindIntegrity && kind != turnstone.KindNotFound
}

// getTarget returns the object with the digest i if it has a readable copy under the name t. There
// is no error if it has no copy.
func (s *Store) getTarget(ctx context.Context, t target, i id) (b []byte, ok bool, err error) {
	places, lastErr := s.findTarget(ctx, t)
	for _, p := range places {
		b, err := s.read(ctx, p, i)
		if err == nil || fatal(err) {
			return b, err == nil, err
		}
		if turnstone.KindOf(err) == turnstone.KindIntegrity {
			if b, err := s.readElsewhere(ctx, p, i); err == nil {
				return b, true, nil
			}
			s.bad.Mark(t.id)
		}
		lastErr = err
	}
	return nil, false, lastErr
}

// find returns the places of i. It first rebuilds a damaged index.
func (s *Store) find(ctx context.Context, i id) ([]place, error) {
	for try := 0; ; try++ {
		v, err := s.index.current()
		if err != nil {
			return nil, err
		}
		places, err := v.find(i)
		if err == nil || try == 2 || !errors.Is(err, errSegment) {
			return slices.Clone(places), fail("store.index", s.dir, err)
		}
		if err := s.repair(ctx); err != nil {
			return nil, err
		}
	}
}

// known reports whether the view has i in the index as far as this process has read it.
func (s *Store) known(ctx context.Context, i id) (bool, error) {
	targets, err := s.targets(i)
	if err != nil {
		return false, err
	}
	for _, t := range targets {
		if ok, err := s.has(ctx, t, nil); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// has reports whether the index has an undamaged object at the target, in a pack other than those
// in without.
func (s *Store) has(ctx context.Context, t target, without func(pack id) bool) (bool, error) {
	places, err := s.find(ctx, t.id)
	ok := slices.ContainsFunc(places, func(p place) bool {
		return p.domain == t.domain && (without == nil || !without(p.pack))
	})
	return ok && !s.bad.Has(t.id), err
}

// Has reports whether the object d exists, without reading it.
func (s *Store) Has(ctx context.Context, d turnstone.Digest) (bool, error) {
	i, err := parseID("store.has", d)
	if err != nil {
		return false, err
	}
	for _, prepare := range []func(context.Context) error{nil, s.refresh} {
		if prepare != nil {
			if err := prepare(ctx); err != nil {
				return false, err
			}
		}
		if ok, err := s.known(ctx, i); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// read returns the object at p, verified against its digest i.
func (s *Store) read(ctx context.Context, p place, i id) ([]byte, error) {
	stored, err := s.load(ctx, p)
	if err != nil {
		return nil, err
	}
	b, err := s.unpack(stored, p, i)
	if err != nil && s.packs.Again(ctx, packName(p.pack), stored, int64(p.off)) {
		b, err = s.unpack(stored, p, i)
	}
	if err != nil {
		return nil, damagedUnless("store.get", subject(p), err)
	}
	return b, nil
}

// load returns the stored form of the object at p, which is not verified.
func (s *Store) load(ctx context.Context, p place) ([]byte, error) {
	stored := make([]byte, p.stored)
	if err := s.packs.ReadAt(ctx, packName(p.pack), stored, int64(p.off)); err != nil {
		if turnstone.KindOf(err) == turnstone.KindInvalid { // the pack is too short
			err = damaged("store.get", subject(p), err)
		}
		return nil, err
	}
	return stored, nil
}

func subject(p place) string { return string(p.id.digest()) + " in " + packName(p.pack) }

// readElsewhere reads the object at the position in the pack's own table if that differs from the
// index, and then rebuilds the index.
func (s *Store) readElsewhere(ctx context.Context, p place, i id) ([]byte, error) {
	same := errors.New("the pack's own table agrees")
	t, err := s.readTable(ctx, p.pack, -1)
	if err != nil {
		return nil, err
	}
	for _, e := range t.entries {
		if e.id == p.id && e != p.packEntry {
			if err := s.reindex(ctx); err != nil {
				return nil, err
			}
			return s.read(ctx, place{packEntry: e, pack: p.pack, domain: t.domain}, i)
		}
	}
	return nil, same
}

// refresh reads the changes of other processes.
func (s *Store) refresh(context.Context) error {
	_, err := s.index.refresh()
	return err
}

// adopt adds packs without an index entry to the index: packs of a process that was killed early,
// or of another machine.
func (s *Store) adopt(ctx context.Context) error { return s.locked(ctx, s.adoptLocked) }

// adoptLate is adopt after a wait for packs that a list does not have yet, where there may be any.
func (s *Store) adoptLate(ctx context.Context) error {
	if late, ok := s.blobs.(blob.Late); !ok || !late.Settle(ctx) {
		return nil
	}
	return s.adopt(ctx)
}

// locked calls f with the lock of the index.
func (s *Store) locked(ctx context.Context, f func(context.Context) error) error {
	l, err := s.locks().Index(ctx)
	if err != nil {
		return err
	}
	defer l.Release()
	return f(ctx)
}

// adoptLocked is adopt with the lock held. It passes over unreadable packs.
func (s *Store) adoptLocked(ctx context.Context) error {
	v, err := s.index.refresh()
	if err != nil {
		return err
	}
	var found []*newPack
	known := v.packs()
	for info, err := range s.blobs.List(ctx, packPrefix) {
		if err != nil {
			return err
		}
		p, ok := parsePackName(info.Name)
		if !ok || known[p].objects > 0 {
			continue
		}
		t, err := s.readTable(ctx, p, info.Size)
		if err != nil {
			if kind := turnstone.KindOf(err); kind != turnstone.KindIntegrity &&
				kind != turnstone.KindNotFound {
				return err
			}
			continue
		}
		found = append(found, t)
	}
	if found, err = s.notRemoved(ctx, found); err != nil || len(found) == 0 {
		return err
	}
	return fail("store.index", s.dir, s.index.add(ctx, found))
}

// repair removes damaged segments and adds their packs to the index again.
func (s *Store) repair(ctx context.Context) error { return s.locked(ctx, s.repairLocked) }

// repairLocked is repair with the lock held.
func (s *Store) repairLocked(ctx context.Context) error {
	v, err := s.index.refresh()
	if err != nil {
		return err
	}
	broken := slices.Clone(v.broken)
	for _, seg := range v.segs {
		for _, err := range seg.all() {
			if err != nil {
				broken = append(broken, seg.name)
				break
			}
		}
	}
	return s.indexAgain(ctx, broken)
}

// indexAgain removes segments, and adds the packs that are then in no segment.
func (s *Store) indexAgain(ctx context.Context, segments []string) error {
	for _, name := range segments {
		if err := s.index.remove(name); err != nil {
			return fail("store.index", s.dir, err)
		}
	}
	return s.adoptLocked(ctx)
}

// reindex rebuilds the index from the packs alone.
func (s *Store) reindex(ctx context.Context) error {
	return s.locked(ctx, func(ctx context.Context) error {
		v, err := s.index.refresh()
		if err != nil {
			return err
		}
		all := slices.Clone(v.broken)
		for _, seg := range v.segs {
			all = append(all, seg.name)
		}
		return s.indexAgain(ctx, all)
	})
}

// packsView returns the index with the changes of other processes, to list its packs.
func (s *Store) packsView(ctx context.Context) (*view, error) {
	if err := s.refresh(ctx); err != nil {
		return nil, err
	}
	v, err := s.index.current()
	if err != nil || len(v.broken) == 0 {
		return v, err
	}
	if err := s.repair(ctx); err != nil {
		return nil, err
	}
	return s.index.current()
}

// Usage returns the amount of data in the store, of all domains. The objects of domains count with
// their stored sizes.
func (s *Store) Usage(ctx context.Context) (turnstone.StoreUsage, error) {
	v, err := s.packsView(ctx)
	if err != nil {
		return turnstone.StoreUsage{}, err
	}
	var u turnstone.StoreUsage
	for _, p := range v.packs() {
		u.Packs++
		u.Objects += int(p.objects)
		u.Stored += p.size
		u.Bytes += p.raw
	}
	return u, nil
}

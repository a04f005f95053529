package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/seal"
)

// A Problem is a fault found by Fsck.
type Problem struct {
	Object   turnstone.Digest `json:"object,omitempty"`   // the name, if it is sealed
	Domain   string           `json:"domain,omitempty"`   // of a sealed object or pack
	Pack     string           `json:"pack,omitempty"`     // the pack's blob name
	Segment  string           `json:"segment,omitempty"`  // a segment of the index
	Repaired bool             `json:"repaired,omitempty"` // the index was rebuilt from the packs
	Err      error            `json:"-"`
}

// Fsck reads and verifies every object: sealed objects of other domains than the view's by their
// checksums, which needs no key. It reports each damaged object, each object of a damaged
// pack, each missing or invalid pack, and faults of the index, which it rebuilds. It calls report
// from a single goroutine at a time. Putting a damaged object again stores it again.
func (s *Store) Fsck(ctx context.Context, report func(Problem)) (turnstone.StoreSummary, error) {
	l, err := s.enter(ctx)
	if err != nil {
		return turnstone.StoreSummary{}, err
	}
	defer l.Release()
	c := &checker{s: s, report: report, bad: map[[32]byte]bool{}, domains: map[id]seal.ID{}}
	if err := c.index(ctx); err != nil {
		return c.sum, err
	}
	places, err := c.placesByPack(ctx)
	if err != nil {
		return c.sum, err
	}
	if err := c.packs(ctx, places); err != nil {
		return c.sum, err
	}
	if c.wrongIndex {
		if err := s.reindex(ctx); err != nil {
			return c.sum, err
		}
	}
	return c.sum, fail("store.fsck", s.dir, s.bad.Set(c.bad))
}

// A checker is the state of an Fsck.
type checker struct {
	s *Store

	mu         sync.Mutex
	report     func(Problem)
	sum        turnstone.StoreSummary
	bad        map[[32]byte]bool
	domains    map[id]seal.ID // of the packs in the index
	wrongIndex bool
}

func (c *checker) problem(p Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.Problems++
	if pack, ok := parsePackName(p.Pack); ok && !c.domains[pack].IsZero() {
		p.Domain = c.domains[pack].String()
	}
	if p.Object != "" {
		if i, err := parseID("", p.Object); err == nil {
			c.bad[i] = true
		}
	}
	c.report(p)
}

// index checks the segments, rebuilds damaged segments, and adds missing packs to the index.
func (c *checker) index(ctx context.Context) error {
	v, err := c.s.index.refresh()
	if err != nil {
		return err
	}
	broken := len(v.broken) > 0
	for _, name := range v.broken {
		c.problem(Problem{Segment: name, Repaired: true,
			Err: errors.New("the file is not a segment of an index")})
	}
	for _, seg := range v.segs {
		// Read again from disk: the copy in memory was valid when it was read.
		if err := seg.check(ctx); err != nil {
			if !errors.Is(err, errSegment) {
				return fail("store.fsck", seg.name, err)
			}
			broken = true
			c.problem(Problem{Segment: seg.name, Repaired: true, Err: err})
		}
	}
	if broken {
		return c.s.reindex(ctx)
	}
	return c.s.adopt(ctx) // unreadable packs are found again below
}

// placesByPack returns the index's places by pack.
func (c *checker) placesByPack(ctx context.Context) (map[id][]packEntry, error) {
	v, err := c.s.index.refresh()
	if err != nil {
		return nil, err
	}
	all := map[id][]packEntry{}
	for p, info := range v.packs() {
		all[p] = nil
		c.domains[p] = info.domain
	}
	for p, err := range v.all(ctx) {
		if err != nil {
			return nil, fail("store.fsck", c.s.dir, err)
		}
		all[p.pack] = append(all[p.pack], p.packEntry)
	}
	return all, nil
}

// packs checks all packs, several concurrently.
func (c *checker) packs(ctx context.Context, places map[id][]packEntry) error {
	g, checking := errgroup.WithContext(ctx)
	g.SetLimit(c.s.cores)
	found := map[id]bool{}
	for info, err := range c.s.blobs.List(checking, packPrefix) {
		p, ok := parsePackName(info.Name)
		if found[p] = ok; c.s.isCondemned(p) {
			continue // it may be deleted at any time
		}
		g.Go(func() error {
			switch {
			case err != nil:
				return err
			case !ok:
				c.problem(Problem{Pack: info.Name, Err: errors.New("not the name of a pack")})
				return nil
			}
			return c.pack(checking, p, info, places[p])
		})
	}
	if err := g.Wait(); err != nil {
		return fail("store.fsck", c.s.dir, err)
	}
	for p, entries := range places {
		if !found[p] && !c.s.isCondemned(p) {
			c.missing(ctx, p, entries)
		}
	}
	return nil
}

// missing reports a missing pack with its objects.
func (c *checker) missing(ctx context.Context, p id, entries []packEntry) {
	gone := errors.New("the pack is missing")
	c.problem(Problem{Pack: packName(p), Err: gone})
	for _, e := range entries {
		if !c.s.readable(ctx, e.id) {
			c.problem(Problem{Object: e.id.digest(), Pack: packName(p), Err: gone})
		}
	}
}

// readable reports whether the object with the name i is intact at one of its places.
func (s *Store) readable(ctx context.Context, i id) bool {
	places, err := s.find(ctx, i)
	if err != nil {
		return false
	}
	for _, p := range places {
		if s.intact(ctx, p) == nil {
			return true
		}
	}
	return false
}

// pack checks a pack. It returns only errors unrelated to the stored data.
func (c *checker) pack(ctx context.Context, p id, info blob.Info, indexed []packEntry) error {
	entries := indexed
	domain := c.domains[p]
	t, err := c.s.readTable(ctx, p, info.Size)
	switch {
	case err == nil:
		entries, domain = t.entries, t.domain
		if !sameEntries(indexed, entries) {
			c.mu.Lock()
			c.wrongIndex = true
			c.mu.Unlock()
			c.problem(Problem{Pack: info.Name, Repaired: true,
				Err: errors.New("the index does not match the pack")})
		}
	case turnstone.KindOf(err) == turnstone.KindIntegrity:
		c.problem(Problem{Pack: info.Name, Err: err})
	default:
		return err
	}
	header := packHeader(domain)
	r := &packScan{c: c, ctx: ctx, name: info.Name, size: info.Size, sum: checksum(header)}
	defer r.close()
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b packEntry) int { return int(int64(a.off) - int64(b.off)) })
	intact := err == nil
	if intact {
		if err := r.frame(header, entries); err != nil {
			if turnstone.KindOf(err) != turnstone.KindIntegrity {
				return err
			}
			intact = false
			c.problem(Problem{Pack: info.Name, Err: err})
		}
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		stored, err := r.next(e)
		if err == nil {
			err = c.s.verify(stored, place{packEntry: e, pack: p, domain: domain})
			if turnstone.KindOf(err) == turnstone.KindUnavailable { // the domain was erased
				return err
			}
		} else if kind := turnstone.KindOf(err); kind == turnstone.KindUnavailable ||
			kind == turnstone.KindCanceled {
			return err
		}
		if err != nil {
			intact = false
			c.problem(Problem{Object: e.id.digest(), Pack: info.Name, Err: err})
		}
	}
	if intact && t.sum != 0 && t.sum != packSum(r.sum) {
		c.problem(Problem{Pack: info.Name, Err: damaged("store.fsck", info.Name,
			errors.New("a byte of the pack has changed, and all of its objects are intact"))})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum.Packs++
	c.sum.Objects += len(entries)
	c.sum.Bytes += info.Size
	return nil
}

func sameEntries(a, b []packEntry) bool {
	byID := func(x, y packEntry) int { return bytes.Compare(x.id[:], y.id[:]) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), byID),
		slices.SortedFunc(slices.Values(b), byID))
}

// A packScan reads a pack's objects sequentially.
type packScan struct {
	c    *checker
	ctx  context.Context
	name string
	size int64
	rc   io.ReadCloser
	br   *bufio.Reader
	at   int64
	buf  []byte
	sum  uint32 // CRC-32C of the beginning and the objects that were read
}

// frame checks the bytes of a pack outside of its objects and its table: the beginning, and that
// there are no others.
func (r *packScan) frame(header []byte, sorted []packEntry) error {
	rc, err := r.c.s.blobs.Get(r.ctx, r.name, 0, int64(len(header)))
	if err != nil {
		return err
	}
	begin := make([]byte, len(header))
	_, err = io.ReadFull(rc, begin)
	_ = rc.Close()
	if err != nil || !bytes.Equal(begin, header) {
		return damaged("store.fsck", r.name, errors.New("the pack does not begin like one"))
	}
	at := int64(len(header))
	for _, e := range sorted {
		if int64(e.off) > at && (at != int64(len(header)) || !r.padded(int64(e.off)-at, header)) {
			return damaged("store.fsck", r.name, errors.New("the pack has bytes of no object"))
		}
		at = max(at, int64(e.off)+int64(e.stored))
	}
	return nil
}

// padded reads the n bytes before the first object, and reports whether they are a padding.
func (r *packScan) padded(n int64, header []byte) bool {
	pad := make([]byte, min(n, maxPadding))
	err := r.c.s.packs.ReadAt(r.ctx, r.name, pad, int64(len(header)))
	r.sum = crc32.Update(r.sum, castagnoli, pad)
	return err == nil && n < maxPadding && !slices.ContainsFunc(pad, func(b byte) bool { return b != 0 })
}

// next returns e's stored form, valid until the next call.
func (r *packScan) next(e packEntry) ([]byte, error) {
	off, n := int64(e.off), int64(e.stored)
	if e.check() != nil || off+n > r.size {
		return nil, damaged("store.fsck", r.name, errors.New("the pack is too short"))
	}
	if r.rc == nil || off < r.at {
		r.close()
		rc, err := r.c.s.blobs.Get(r.ctx, r.name, off, -1)
		if err != nil {
			return nil, err
		}
		r.rc, r.br, r.at = rc, bufio.NewReaderSize(rc, 1<<20), off
	}
	if _, err := io.CopyN(io.Discard, r.br, off-r.at); err != nil {
		return nil, blob.Error("store.fsck", r.name, err)
	}
	if int64(cap(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	r.buf = r.buf[:n]
	if _, err := io.ReadFull(r.br, r.buf); err != nil {
		return nil, blob.Error("store.fsck", r.name, err)
	}
	r.at = off + n
	r.sum = crc32.Update(r.sum, castagnoli, r.buf)
	return r.buf, nil
}

func (r *packScan) close() {
	if r.rc != nil {
		_ = r.rc.Close()
		r.rc = nil
	}
}

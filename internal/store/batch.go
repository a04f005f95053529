package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/codec"
	"turnstone.dev/turnstone/internal/store/memory"
	"turnstone.dev/turnstone/internal/store/seal"
)

// A Batch is a set of objects that become durable together: see Flush. Its methods are safe for
// concurrent use. The caller's goroutine hashes objects; background goroutines compress and write
// them.
type Batch struct {
	s      *Store
	lock   *entry
	ctx    context.Context // for the background goroutines
	cancel context.CancelFunc
	jobs   chan *job     // its length bounds the objects that wait for compression
	slots  chan struct{} // bounds the packs that are being written
	wg     sync.WaitGroup

	mu      sync.Mutex
	idle    *sync.Cond      // signaled when running is 0
	running int             // jobs and packs in progress
	objects map[id]*pending // by digest
	needs   map[id]bool     // names: see Needs
	open    *pack           // the pack that receives objects; may be nil
	packs   []*newPack
	err     error // the first background error: the batch is lost
	started bool
	closed  bool
}

// A pending object is in the batch and not yet in the index. It is in raw until it is compressed,
// then in a pack, initially in memory.
type pending struct {
	raw   *memory.Buffer
	pack  *pack
	entry packEntry
}

// A job is an object to compress; a chunk's digest is not known yet.
type job struct {
	buf   *memory.Buffer
	id    id              // the digest
	name  id              // the name in the store
	chunk *id             // receives the digest
	done  *sync.WaitGroup // for chunks
}

// Begin starts a batch, which prevents Sweep from deleting until the batch is closed. Begin waits
// for a deleting Sweep until ctx is done.
func (s *Store) Begin(ctx context.Context) (*Batch, error) {
	l, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	b := &Batch{s: s, lock: l, jobs: make(chan *job, 64), slots: make(chan struct{}, 2),
		objects: map[id]*pending{}, needs: map[id]bool{}}
	b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	b.idle = sync.NewCond(&b.mu)
	b.watch()
	return b, nil
}

// Put stores p as an object.
func (b *Batch) Put(ctx context.Context, p []byte) (turnstone.Digest, error) {
	const op = "store.put"
	if len(p) > MaxObject {
		return "", turnstone.Errorf(op, turnstone.KindInvalid, "",
			"the object is too large: %d bytes", len(p))
	}
	i := id(sha256.Sum256(p))
	name, have, err := b.has(ctx, i)
	if err == nil && !have {
		buf := b.s.bufs.Get(len(p))
		copy(buf.B, p)
		err = b.add(ctx, &job{buf: buf, id: i, name: name})
	}
	if err == nil {
		b.need(name)
	}
	return i.digest(), err
}

// has returns the name of the object with the digest i, and reports whether the batch or its domain
// has the object. Public objects do not count: a domain depends on no object outside of it, and its
// needs do not reveal which public objects equal its own.
func (b *Batch) has(ctx context.Context, i id) (name id, have bool, err error) {
	if name, err = b.s.nameOf(i); err != nil {
		return name, false, err
	}
	b.mu.Lock()
	_, ok := b.objects[i]
	err = b.state()
	b.mu.Unlock()
	if ok || err != nil {
		return name, ok, err
	}
	ok, err = b.s.has(ctx, target{name, b.s.domainID()}, b.s.isCondemned)
	return name, ok, err
}

// need notes names that the batch has put or found.
func (b *Batch) need(names ...id) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range names {
		b.needs[n] = true
	}
}

// Refer notes in Needs the objects of a content of the store that the batch's data refers to and did
// not put.
func (b *Batch) Refer(ctx context.Context, c turnstone.Content) error {
	objects, err := b.s.ContentObjects(ctx, c)
	for _, d := range objects {
		var i, name id
		have := false
		if i, err = parseID("store.refer", d); err == nil {
			name, have, err = b.has(ctx, i)
		}
		if err != nil {
			return err
		}
		if have {
			b.need(name)
		}
	}
	return err
}

// Needs returns the sorted names of all objects that the batch has put or found in its domain since
// Begin, including chunks and lists of chunks. A Mark has to keep them, and the objects that the
// batch's data refers to without having put them, such as the parent's. A name has the form of a
// digest; in a public batch it is the digest.
func (b *Batch) Needs() []turnstone.Digest {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]turnstone.Digest, 0, len(b.needs))
	for i := range b.needs {
		all = append(all, i.digest())
	}
	slices.Sort(all)
	return all
}

// elsewhere reports whether an alternate has the content with the digest i. A sealed batch asks
// none: what it has not stored would show, to who has the templates, what it contains.
func (b *Batch) elsewhere(i id) bool {
	return b.s.domain == nil && b.s.elsewhere(i.digest()) != nil
}

// state returns the batch's error.
func (b *Batch) state() error {
	if b.closed {
		return turnstone.Errorf("store.put", turnstone.KindInternal, "", "the batch is closed")
	}
	return b.err
}

// add passes a job and its buffer to the background.
func (b *Batch) add(ctx context.Context, j *job) error {
	b.mu.Lock()
	err := b.state()
	if err == nil && j.chunk == nil {
		if b.objects[j.id] != nil { // another Put stored it meanwhile
			b.mu.Unlock()
			j.buf.Release()
			return nil
		}
		j.buf.Retain()
		b.objects[j.id] = &pending{raw: j.buf}
	}
	if err != nil {
		b.mu.Unlock()
		j.buf.Release()
		return err
	}
	b.running++
	b.start()
	b.mu.Unlock()
	select {
	case b.jobs <- j:
		return nil
	case <-ctx.Done():
		err = fail("store.put", "", ctx.Err())
	case <-b.ctx.Done():
		err = fail("store.put", "", b.ctx.Err())
	}
	b.mu.Lock()
	if j.chunk == nil {
		b.objects[j.id].raw.Release()
		delete(b.objects, j.id)
	}
	b.done()
	b.mu.Unlock()
	j.buf.Release()
	return err
}

// start starts the background goroutines, with the lock held.
func (b *Batch) start() {
	if b.started {
		return
	}
	b.started = true
	for range b.s.cores {
		b.wg.Go(func() {
			var scratch scratch
			for {
				select {
				case <-b.ctx.Done():
					return
				case j := <-b.jobs:
					err := b.compress(j, &scratch)
					j.buf.Release()
					if j.done != nil {
						j.done.Done()
					}
					b.mu.Lock()
					b.lose(err)
					b.done()
					b.mu.Unlock()
				}
			}
		})
	}
}

// done counts a job or a pack as finished, with the lock held.
func (b *Batch) done() {
	if b.running--; b.running == 0 {
		b.idle.Broadcast()
	}
}

// lose records an error that makes the batch unusable, with the lock held.
func (b *Batch) lose(err error) {
	if err != nil && b.err == nil {
		b.err = err
	}
}

// A scratch has the memory of a background goroutine.
type scratch struct{ frame, sealed []byte }

// compress adds an object to the open pack.
func (b *Batch) compress(j *job, tmp *scratch) error {
	raw := j.buf.B
	if j.chunk != nil {
		j.id = sha256.Sum256(raw)
		*j.chunk = j.id
		name, have, err := b.has(b.ctx, j.id)
		if err != nil || have {
			return err
		}
		j.name = name
		b.mu.Lock()
		if b.objects[j.id] != nil {
			b.mu.Unlock()
			return nil
		}
		j.buf.Retain()
		b.objects[j.id] = &pending{raw: j.buf}
		b.mu.Unlock()
	}
	stored, err := b.encode(j.name, raw, tmp)
	if err != nil {
		return err
	}
	e := newEntry(j.name, stored, len(raw), b.s.domain != nil)
	full := b.place(j.id, e, stored)
	if full == nil {
		return nil
	}
	return b.write(b.ctx, full)
}

// encode returns the stored form of the object raw, which may be in tmp.
func (b *Batch) encode(name id, raw []byte, tmp *scratch) ([]byte, error) {
	if cap(tmp.frame) > 4*maxChunk {
		*tmp = scratch{}
	}
	domain := b.s.domain
	head := 0
	if domain != nil {
		head = seal.HeaderSize
	}
	stored := raw
	if len(raw) > 0 {
		// The capacity suffices for the frame, its padding, and what does not compress.
		tmp.frame = slices.Grow(tmp.frame[:0], seal.PaddedSize(head+codec.Bound(len(raw))))
		p, err := b.s.codec.Compress(tmp.frame[head:head], raw)
		if err != nil {
			return nil, err
		}
		// The saving must be worth the decompression.
		if len(p) < len(raw)-len(raw)/64 {
			stored = p
		}
	}
	if domain == nil {
		return stored, nil
	}
	tmp.frame = slices.Grow(tmp.frame[:0], head+len(stored))[:head+len(stored)]
	if len(stored) > 0 && &stored[0] != &tmp.frame[head] {
		copy(tmp.frame[head:], stored)
	}
	var err error
	tmp.sealed, err = domain.Seal(tmp.sealed[:0], tmp.frame, name, len(raw))
	return tmp.sealed, err
}

// place adds an object's stored form to the open pack, and returns the pack if it is full.
func (b *Batch) place(i id, e packEntry, stored []byte) (full *pack) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = b.s.newPack(b.s.domainID())
	}
	p := b.objects[i]
	p.entry = b.open.add(e, stored)
	p.pack = b.open
	p.raw.Release()
	p.raw = nil
	if b.open.data.Len() >= packTarget {
		full, b.open = b.open, nil
		b.running++ // until it is written
	}
	return full
}

// write writes a pack in the background, and waits while too many are being written. Its caller has
// counted the pack in running.
func (b *Batch) write(ctx context.Context, p *pack) error {
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		b.done()
		return fail("store.put", "", ctx.Err())
	}
	b.wg.Go(func() {
		table, name := p.table()
		b.mu.Lock() // other goroutines read from the pack
		p.id = name
		p.data.Append(table)
		b.mu.Unlock()
		err := b.s.putPack(b.ctx, name, p.data)
		<-b.slots
		b.mu.Lock()
		defer b.mu.Unlock()
		p.written = err == nil
		p.data.Free()
		if err == nil {
			b.packs = append(b.packs, p.indexed())
		}
		b.lose(err)
		b.done()
	})
	return nil
}

// Flush makes all earlier objects durable and known to the store, also to other processes. The
// batch remains usable unless Flush failed: then the objects since the last successful Flush are
// lost.
func (b *Batch) Flush(ctx context.Context) error {
	if err := b.drain(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	last := b.open
	b.open = nil
	if last != nil {
		b.running++
	}
	b.mu.Unlock()
	if last != nil {
		if err := b.write(ctx, last); err != nil {
			b.mu.Lock()
			b.lose(err)
			b.mu.Unlock()
			return err
		}
		if err := b.drain(ctx); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.packs) == 0 {
		return nil
	}
	if err := b.s.addPacks(ctx, b.packs); err != nil {
		b.lose(err)
		return err
	}
	b.packs = nil
	for i, p := range b.objects {
		if p.pack != nil && p.pack.written { // other objects were added meanwhile
			delete(b.objects, i)
		}
	}
	return nil
}

// addPacks adds packs to the index.
func (s *Store) addPacks(ctx context.Context, packs []*newPack) error {
	l, err := s.locks().Index(ctx)
	if err != nil {
		return err
	}
	defer l.Release()
	if kept, err := s.notRemoved(ctx, slices.Clone(packs)); err != nil {
		return err
	} else if len(kept) < len(packs) {
		return turnstone.Errorf("store.index", turnstone.KindUnavailable, s.dir,
			"another machine has deleted what this one stored before it was away").
			WithHint("run the turn again")
	}
	if err := s.index.add(ctx, packs); !errors.Is(err, errSegment) {
		return fail("store.index", s.dir, err)
	}
	l.Release()
	if err := s.repair(ctx); err != nil { // repair also adopts the packs
		return err
	}
	return nil
}

// drain waits until running is 0.
func (b *Batch) drain(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.idle.Broadcast()
	})
	defer stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.running > 0 && ctx.Err() == nil && b.err == nil && !b.closed {
		b.idle.Wait()
	}
	if err := b.state(); err != nil {
		return err
	}
	return fail("store.flush", "", ctx.Err())
}

// Close ends the batch and drops objects that were not flushed. Closing it again does nothing.
func (b *Batch) Close() error {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.idle.Broadcast()
	b.mu.Unlock()
	if closed {
		return nil
	}
	b.cancel()
	b.wg.Wait()
	for {
		select {
		case j := <-b.jobs: // the background has ended
			if j.done != nil {
				j.done.Done()
			}
			continue
		default:
		}
		break
	}
	b.lock.Release()
	return nil
}

// Get returns an object of the batch or the store.
func (b *Batch) Get(ctx context.Context, d turnstone.Digest) ([]byte, error) {
	i, err := parseID("store.get", d)
	if err != nil {
		return nil, err
	}
	return b.get(ctx, i)
}

func (b *Batch) get(ctx context.Context, i id) ([]byte, error) {
	b.mu.Lock()
	p := b.objects[i]
	if p == nil {
		b.mu.Unlock()
		return b.s.get(ctx, i)
	}
	if p.raw != nil {
		defer b.mu.Unlock()
		return append([]byte{}, p.raw.B...), nil
	}
	pk, e := p.pack, p.entry
	if pk.written {
		b.mu.Unlock()
		return b.s.read(ctx, place{packEntry: e, pack: pk.id, domain: pk.domain}, i)
	}
	stored := make([]byte, e.stored)
	_, err := pk.data.ReadAt(stored, int64(e.off))
	b.mu.Unlock()
	if err != nil {
		return nil, err // its pack could not be written
	}
	return b.s.unpack(stored, place{packEntry: e, domain: pk.domain}, i)
}

package store

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	libzstd "github.com/DataDog/zstd"
	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/blob"
)

// A packReader reads ranges of packs. From slow storage it reads whole windows because objects that
// were put together are read together.
type packReader struct {
	blobs  blob.Store
	ranges blob.RangeReader // nil if windows are needed

	mu      sync.Mutex
	windows map[windowKey]*list.Element
	lru     list.List // of *window
}

const (
	windowSize = 1 << 20
	maxWindows = 32
)

type windowKey struct {
	name string
	n    int64
}

type window struct {
	key windowKey
	b   []byte // shorter at the blob's end
}

func (r *packReader) init(blobs blob.Store) {
	r.blobs = blobs
	r.ranges, _ = blobs.(blob.RangeReader)
	r.windows = map[windowKey]*list.Element{}
}

// readAt fills p from off on.
func (r *packReader) readAt(ctx context.Context, name string, p []byte, off int64) error {
	if r.ranges != nil {
		return r.ranges.ReadAt(ctx, name, p, off)
	}
	if len(p) >= windowSize {
		return r.fill(ctx, name, p, off)
	}
	for len(p) > 0 {
		b, err := r.window(ctx, name, off/windowSize, off+int64(len(p)))
		if err != nil {
			return err
		}
		n := copy(p, b[off%windowSize:])
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// fill reads without a window.
func (r *packReader) fill(ctx context.Context, name string, p []byte, off int64) error {
	rd, err := r.blobs.Get(ctx, name, off, int64(len(p)))
	if err != nil {
		return err
	}
	defer func() { _ = rd.Close() }()
	if _, err := io.ReadFull(rd, p); err != nil {
		return blob.Error("blob.get", name, err)
	}
	return nil
}

// window returns the n-th window of a blob, with at least its bytes up to end.
func (r *packReader) window(ctx context.Context, name string, n, end int64) ([]byte, error) {
	key := windowKey{name, n}
	r.mu.Lock()
	if el := r.windows[key]; el != nil {
		r.lru.MoveToFront(el)
		r.mu.Unlock()
		return r.covers(el.Value.(*window), end)
	}
	r.mu.Unlock()
	rd, err := r.blobs.Get(ctx, name, n*windowSize, -1)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rd.Close() }()
	b, err := io.ReadAll(io.LimitReader(rd, windowSize))
	if err != nil {
		return nil, blob.Error("blob.get", name, err)
	}
	w := &window{key: key, b: b}
	r.mu.Lock()
	if r.windows[key] == nil {
		r.windows[key] = r.lru.PushFront(w)
		for r.lru.Len() > maxWindows {
			old := r.lru.Remove(r.lru.Back()).(*window)
			delete(r.windows, old.key)
		}
	}
	r.mu.Unlock()
	return r.covers(w, end)
}

func (r *packReader) covers(w *window, end int64) ([]byte, error) {
	if have := w.key.n*windowSize + int64(len(w.b)); have < end && len(w.b) < windowSize {
		_, err := blob.Range("blob.get", w.key.name, 0, end, have)
		return nil, err
	}
	return w.b, nil
}

// forget drops the windows of a blob.
func (r *packReader) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, el := range r.windows {
		if key.name == name {
			r.lru.Remove(el)
			delete(r.windows, key)
		}
	}
}

// readTable reads a pack's table. size is the size of its blob, -1 if unknown.
func (s *Store) readTable(ctx context.Context, pack id, size int64) (*newPack, error) {
	const op = "store.pack"
	name := packName(pack)
	bad := func(err error) (*newPack, error) { return nil, damaged(op, name, err) }
	if size < 0 {
		for info, err := range s.packs.blobs.List(ctx, name) {
			if err != nil {
				return nil, err
			}
			size = info.Size
		}
		if size < 0 {
			return nil, turnstone.Errorf(op, turnstone.KindNotFound, name,
				"the pack does not exist")
		}
	}
	if size < int64(len(packMagic))+packTrailerSize || size > 2*maxPack {
		return bad(fmt.Errorf("the pack is too short: %d bytes", size))
	}
	// Most tables fit into the first guess.
	b := make([]byte, min(size, 16<<10))
	if err := s.packs.fill(ctx, name, b, size-int64(len(b))); err != nil {
		return nil, err
	}
	n, err := tableSize(b[len(b)-packTrailerSize:], size)
	if err != nil {
		return bad(err)
	}
	if n > int64(len(b)) {
		b = make([]byte, n)
		if err := s.packs.fill(ctx, name, b, size-n); err != nil {
			return nil, err
		}
	}
	entries, err := decodeTable(b[int64(len(b))-n:], pack, size)
	if err != nil {
		return bad(err)
	}
	t := &newPack{packInfo: packInfo{id: pack, size: size,
		objects: uint32(len(entries))}, entries: entries,
		sum: binary.LittleEndian.Uint32(b[len(b)-sumOffset:])}
	for _, e := range entries {
		t.raw += int64(e.size)
	}
	return t, nil
}

// A codec compresses and decompresses objects. It is created on first use. The reference
// implementation compresses, at 1.7 times the speed of the Go implementation; the Go implementation
// decompresses because stored data may have been tampered with.
type codec struct {
	cores int
	mu    sync.Mutex
	enc   sync.Pool // of libzstd.Ctx
	dec   *zstd.Decoder
}

// compress appends nothing: it returns src as a zstd frame, in dst if dst is large enough. There is
// no checksum because the digest is a checksum. The library gives up quickly on incompressible
// data.
func (c *codec) compress(dst, src []byte) ([]byte, error) {
	ctx, ok := c.enc.Get().(libzstd.Ctx)
	if !ok {
		ctx = libzstd.NewCtx()
	}
	defer c.enc.Put(ctx)
	return ctx.CompressLevel(dst[:cap(dst)], src, libzstd.BestSpeed)
}

func (c *codec) decoder() (*zstd.Decoder, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.dec == nil {
		c.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(c.cores),
			zstd.WithDecodeAllCapLimit(true),
			zstd.WithDecoderMaxMemory(2*MaxObject))
	}
	return c.dec, err
}

func (c *codec) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dec != nil {
		c.dec.Close()
		c.dec = nil
	}
}

// errDigest reports an object whose stored bytes were changed, whether they still decompress or
// not.
var errDigest = errors.New("the object does not match its digest")

// decode returns the verified object e from its stored form. It allocates at most e.size bytes,
// whatever is stored.
func (c *codec) decode(stored []byte, e packEntry) ([]byte, error) {
	b := stored
	if e.stored != e.size {
		if err := e.check(); err != nil {
			return nil, err
		}
		dec, err := c.decoder()
		if err != nil {
			return nil, err
		}
		if b, err = dec.DecodeAll(stored, make([]byte, 0, e.size)); err != nil {
			return nil, fmt.Errorf("%w: %w", errDigest, err)
		}
	}
	if len(b) != int(e.size) || sha256.Sum256(b) != e.id {
		return nil, errDigest
	}
	return b, nil
}

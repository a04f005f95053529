// Package windows reads ranges of blobs. From slow storage it reads and caches whole windows, because
// bytes that were written together are read together.
package windows

import (
	"container/list"
	"context"
	"io"
	"sync"

	"turnstone.dev/turnstone/internal/store/blob"
)

// A Reader reads ranges of blobs. Its methods are safe for concurrent use.
type Reader struct {
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

// New returns a reader of blobs.
func New(blobs blob.Store) *Reader {
	r := &Reader{blobs: blobs, windows: map[windowKey]*list.Element{}}
	r.ranges, _ = blobs.(blob.RangeReader)
	return r
}

// ReadAt fills p with the bytes of a blob from off on. Its errors are those of blob.Store.Get.
func (r *Reader) ReadAt(ctx context.Context, name string, p []byte, off int64) error {
	if r.ranges != nil {
		return r.ranges.ReadAt(ctx, name, p, off)
	}
	if len(p) >= windowSize {
		return r.Fill(ctx, name, p, off)
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

// Fill is ReadAt without a window.
func (r *Reader) Fill(ctx context.Context, name string, p []byte, off int64) error {
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

// Again is ReadAt for bytes that were not those of the blob, and drops its windows: a server may send
// what it does not store. It returns false if the bytes cannot be others, or cannot be read.
func (r *Reader) Again(ctx context.Context, name string, p []byte, off int64) bool {
	if r.ranges != nil {
		return false
	}
	r.Forget(name)
	return r.Fill(ctx, name, p, off) == nil
}

// window returns the n-th window of a blob, with at least its bytes up to end.
func (r *Reader) window(ctx context.Context, name string, n, end int64) ([]byte, error) {
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

func (r *Reader) covers(w *window, end int64) ([]byte, error) {
	if have := w.key.n*windowSize + int64(len(w.b)); have < end && len(w.b) < windowSize {
		_, err := blob.Range("blob.get", w.key.name, 0, end, have)
		return nil, err
	}
	return w.b, nil
}

// Forget drops the windows of a blob.
func (r *Reader) Forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, el := range r.windows {
		if key.name == name {
			r.lru.Remove(el)
			delete(r.windows, key)
		}
	}
}

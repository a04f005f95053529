package local

import (
	"container/list"
	"io/fs"
	"os"
	"sync"
)

// maxHandles is the number of blobs that stay open for reading.
const maxHandles = 64

// handles keeps blobs open, so that reading an object of a blob costs a single system call.
type handles struct {
	root *os.Root

	mu     sync.Mutex
	byName map[string]*handle
	lru    list.List // of *handle, most recent first
	closed bool
}

type handle struct {
	name string
	f    *os.File
	uses int
	el   *list.Element // nil after forget
}

// open returns the handle of name, which the caller returns with done.
func (hs *handles) open(name string) (*handle, error) {
	hs.mu.Lock()
	if h := hs.byName[name]; h != nil {
		h.uses++
		hs.lru.MoveToFront(h.el)
		hs.mu.Unlock()
		return h, nil
	}
	hs.mu.Unlock()

	f, err := hs.root.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		if err == nil {
			err = fs.ErrNotExist
		}
		return nil, err
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := &handle{name: name, f: f, uses: 1}
	if hs.closed || hs.byName[name] != nil { // another goroutine opened it at the same time
		return h, nil
	}
	if hs.byName == nil {
		hs.byName = map[string]*handle{}
	}
	hs.byName[name] = h
	h.el = hs.lru.PushFront(h)
	for hs.lru.Len() > maxHandles {
		hs.drop(hs.lru.Back().Value.(*handle))
	}
	return h, nil
}

// done returns a handle.
func (hs *handles) done(h *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.uses--
	if h.uses == 0 && h.el == nil {
		_ = h.f.Close()
	}
}

// forget closes name after its last reader.
func (hs *handles) forget(name string) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.byName[name]; h != nil {
		hs.drop(h)
	}
}

func (hs *handles) drop(h *handle) {
	delete(hs.byName, h.name)
	hs.lru.Remove(h.el)
	h.el = nil
	if h.uses == 0 {
		_ = h.f.Close()
	}
}

func (hs *handles) close() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.closed = true
	for _, h := range hs.byName {
		hs.drop(h)
	}
}

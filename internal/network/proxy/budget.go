package proxy

import (
	"context"
	"errors"
	"sync"
	"time"
)

// openedCost is the maximum memory of a connection in this process while its TLS is intercepted or
// its requests are checked, in bytes. TestOpenedCost measures it.
const openedCost = 1 << 20

// DefaultBudget is the memory that all such connections of a process share, in bytes.
const DefaultBudget = 256 << 20

// placeTime is how long a connection waits for a place before it is refused.
const placeTime = 30 * time.Second

// A Budget bounds the memory of intercepted connections, of all the sandboxes that share it. It is
// safe for concurrent use.
type Budget struct {
	places chan struct{}
	parent *Budget
}

// NewBudget returns a Budget of the given size, in bytes.
func NewBudget(bytes int64) *Budget {
	return &Budget{places: make(chan struct{}, max(1, bytes/openedCost))}
}

// Share returns a Budget for a sandbox: half of b, and also counted in b, so that no sandbox uses
// all of b.
func (b *Budget) Share() *Budget {
	return &Budget{places: make(chan struct{}, max(1, cap(b.places)/2)), parent: b}
}

// enter waits for a place for a connection; it returns false if ctx or the time ends first.
func (b *Budget) enter(ctx context.Context, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return b.take(ctx)
}

func (b *Budget) take(ctx context.Context) bool {
	select {
	case b.places <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if b.parent != nil && !b.parent.take(ctx) {
		<-b.places
		return false
	}
	return true
}

func (b *Budget) leave() {
	if b.parent != nil {
		b.parent.leave()
	}
	<-b.places
}

// budgeted calls serve with a place in the budget. A connection takes a single place.
func (c *connection) budgeted(ctx context.Context, guest *eagerConn, serve func()) {
	if c.placed {
		serve()
		return
	}
	if !c.p.opts.Budget.enter(ctx, placeTime) {
		c.refused("too many opened connections at once")
		guest.Reset()
		return
	}
	defer c.p.opts.Budget.leave()
	c.placed = true
	serve()
}

// maxFields bounds the lines of a message's header. A header of many short lines uses some twenty
// times its length in memory.
const maxFields = 250

var errManyFields = errors.New("too many fields in a header")

// A headCounter counts the lines of headers in the input of a connection.
type headCounter struct {
	mu     sync.Mutex
	active bool
	lines  int
	length int    // bytes of the current line, without its end
	first  []byte // of the block's first line
}

// begin marks the following bytes as a header.
func (h *headCounter) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active, h.lines, h.length, h.first = true, 0, 0, h.first[:0]
}

// end marks the header as complete.
func (h *headCounter) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.active = false
}

// complete reports whether a complete header has come since the last begin.
func (h *headCounter) complete() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.active && h.lines > 0
}

// saw counts the input. It stops at the header's end, because a body may follow.
func (h *headCounter) saw(p []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range p {
		switch {
		case !h.active:
			return nil
		case c == '\n' && h.length == 0 && h.lines > 0:
			// Another answer follows an answer of the kind 1xx.
			h.active = len(h.first) == len("HTTP/1.1 1") && h.first[9] == '1'
			h.first = h.first[:0]
		case c == '\n':
			h.length = 0
			if h.lines++; h.lines > maxFields {
				return errManyFields
			}
		case c != '\r':
			h.length++
			if len(h.first) < len("HTTP/1.1 1") {
				h.first = append(h.first, c)
			}
		}
	}
	return nil
}

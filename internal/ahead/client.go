package ahead

import "context"

// A Client offers machines to its own later turns, and takes them. Its methods are safe for
// concurrent use; those of nil do nothing.
type Client struct {
	shelf *Shelf
	by    owner
}

// For returns the client with this name, such as its key, of a tenant. No other client gets its
// machines. It is nil if the shelf is.
func (s *Shelf) For(tenant, client string) *Client {
	if s == nil {
		return nil
	}
	return &Client{shelf: s, by: owner{tenant, client}}
}

// Offer makes the shelf make a machine, in the place of that of an earlier offer for the same branch.
func (c *Client) Offer(o Offer) {
	if c != nil {
		c.shelf.offer(c.by, o)
	}
}

// Take returns the machine of k for a turn on branch, or nil if there is none. The caller closes the
// machine. A machine that is being made is waited for until ctx ends. Other machines of the branch are
// closed: their state is no longer its head's.
func (c *Client) Take(ctx context.Context, branch string, k Key) Machine {
	if c == nil {
		return nil
	}
	return c.shelf.take(ctx, c.by, branch, k)
}

// Lost counts a machine that a turn has taken, and could not use.
func (c *Client) Lost() {
	if c == nil {
		return
	}
	c.shelf.mu.Lock()
	defer c.shelf.mu.Unlock()
	c.shelf.counts.Lost++
}

type contextKey struct{}

// NewContext returns a context whose turns are those of c.
func NewContext(ctx context.Context, c *Client) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// From returns the client of NewContext, or nil.
func From(ctx context.Context) *Client {
	c, _ := ctx.Value(contextKey{}).(*Client)
	return c
}

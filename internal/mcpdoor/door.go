package mcpdoor

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
)

// Options are the parts of a Door.
type Options struct {
	// Open returns the place of a new connection, for the caller that token describes, which is nil
	// if the transport has no tokens. It is called when the connection first needs the place.
	Open func(ctx context.Context, token *auth.TokenInfo) (Place, error)
	// Versions are the versions of the protocol that are offered; empty: all.
	Versions []string
	Log      *slog.Logger // gets no contents and no credentials
}

// A Door serves connections of clients. It is safe for concurrent use.
type Door struct {
	o      Options
	server *mcp.Server

	calls  context.Context // ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	all    map[*mcp.ServerSession]*connection
	ending sync.WaitGroup
}

// New returns a door. Close it.
func New(o Options) *Door {
	d := &Door{o: o, all: map[*mcp.ServerSession]*connection{}}
	d.calls, d.cancel = context.WithCancel(context.Background())
	d.server = mcp.NewServer(&mcp.Implementation{Name: "turnstone", Version: turnstone.Version},
		&mcp.ServerOptions{Instructions: instructions, Capabilities: &mcp.ServerCapabilities{},
			SupportedProtocolVersions: o.Versions})
	d.addTools()
	d.addResources()
	d.addPrompts()
	return d
}

// Server returns the protocol's server, for a transport.
func (d *Door) Server() *mcp.Server { return d.server }

// Close ends all calls and connections, and keeps the work in their sandboxes as turns. It returns
// when that is done, or when ctx ends.
func (d *Door) Close(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var ends sync.WaitGroup
		for s := range d.server.Sessions() {
			ends.Go(func() { _ = s.Close() })
		}
		ends.Wait()
		d.ending.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return turnstone.NewError("mcp.close", turnstone.KindTimeout, "the connections", ctx.Err()).
			WithHint("what is in their sandboxes becomes turns at the end of the sandboxes' time")
	}
}

// End ends the calls and the connection with an ID, such as one whose caller is no longer admitted. It
// does not wait for what remains of it.
func (d *Door) End(id string) {
	for s := range d.server.Sessions() {
		if s.ID() != id {
			continue
		}
		d.mu.Lock()
		if c := d.all[s]; c != nil {
			c.cancel()
		}
		if !d.closed { // Close does it then
			d.ending.Go(func() { _ = s.Close() })
		}
		d.mu.Unlock()
	}
}

// errClosed is the error of calls after Close.
var errClosed = errors.New("the server is ending")

// connection returns what belongs to the connection of a request, which it opens when it is new.
func (d *Door) connection(ctx context.Context, s *mcp.ServerSession, extra *mcp.RequestExtra) (
	*connection, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.all[s]; c != nil {
		return c, nil
	}
	if d.closed {
		return nil, errClosed
	}
	var token *auth.TokenInfo
	if extra != nil {
		token = extra.TokenInfo
	}
	p, err := d.o.Open(ctx, token)
	if err != nil {
		return nil, err
	}
	if p.Session == "" {
		p.Session = newSession()
	}
	c := &connection{place: p, log: d.o.Log, boxes: map[target]*box{}}
	c.calls, c.cancel = context.WithCancel(context.Background())
	d.all[s] = c
	if p.Extend != nil {
		d.ending.Go(c.extend)
	}
	d.ending.Go(func() {
		_ = s.Wait()
		c.cancel()
		d.mu.Lock()
		delete(d.all, s)
		d.mu.Unlock()
		c.close()
	})
	return c, nil
}

// newSession returns the name of a session that nobody has.
func newSession() string { return "mcp-" + strings.ToLower(rand.Text()[:12]) }

package mcpdoor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
)

// Options are the parts of a Door.
type Options struct {
	// Open returns the place of a new connection, for the caller that token describes, which is nil
	// if the transport has no tokens. It is called when the connection first needs the place.
	Open func(ctx context.Context, token *auth.TokenInfo) (Place, error)
	// Party returns who makes a call, for a transport whose calls have no connection: its calls name
	// the session that they continue. nil: there are connections.
	Party func(token *auth.TokenInfo) Party
	Idle  time.Duration // how long a party and its sandboxes may be silent
	// MaxResource bounds a resource in bytes of JSON, for clients that take no longer message; 0: it is
	// not bounded.
	MaxResource int
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

	mu      sync.Mutex
	closed  bool
	all     map[*mcp.ServerSession]*connection
	callers map[string]*caller
	ending  sync.WaitGroup
}

// New returns a door. Close it.
func New(o Options) *Door {
	d := &Door{o: o, all: map[*mcp.ServerSession]*connection{}, callers: map[string]*caller{}}
	text := instructions
	if o.Party != nil {
		text = instructionsOfParties
	}
	d.calls, d.cancel = context.WithCancel(context.Background())
	d.server = mcp.NewServer(&mcp.Implementation{Name: "turnstone", Version: turnstone.Version},
		// the lists never change, and a client that waits for it holds a stream
		&mcp.ServerOptions{Instructions: text, Capabilities: &mcp.ServerCapabilities{
			Tools: &mcp.ToolCapabilities{}, Prompts: &mcp.PromptCapabilities{},
			Resources: &mcp.ResourceCapabilities{}}, SupportedProtocolVersions: o.Versions})
	d.addTools()
	d.addResources()
	d.addPrompts()
	if o.Party != nil {
		d.ending.Go(d.tend)
	}
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
		d.closeParties()
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

// Working returns the IDs of the connections that have a sandbox, or a call.
func (d *Door) Working() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	working := map[string]bool{}
	for s, c := range d.all {
		if c.busy > 0 || c.boxes.working() {
			working[s.ID()] = true
		}
	}
	return working
}

// enter begins a call of a connection, which leave ends.
func (d *Door) enter(ctx context.Context, s *mcp.ServerSession, extra *mcp.RequestExtra) (
	c *connection, leave func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, errClosed
	}
	var token *auth.TokenInfo
	if extra != nil {
		token = extra.TokenInfo
	}
	if d.o.Party != nil {
		c, err = d.party(ctx, token)
	} else {
		c, err = d.connection(ctx, s, token)
	}
	if err != nil {
		return nil, nil, err
	}
	c.busy++
	c.running.Add(1)
	return c, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		c.busy--
		c.last = time.Now()
		c.running.Done()
	}, nil
}

// connection returns what belongs to a connection, which it opens when it is new. The door is locked.
func (d *Door) connection(ctx context.Context, s *mcp.ServerSession, token *auth.TokenInfo) (
	*connection, error) {
	if c := d.all[s]; c != nil {
		return c, nil
	}
	p, err := d.o.Open(ctx, token)
	if err != nil {
		return nil, err
	}
	if p.Session == "" {
		p.Session = newSession()
	}
	c := d.newConnection(p, newBoxes(maxBoxes))
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
		c.boxes.close(c.log)
		c.free()
	})
	return c, nil
}

// Package client runs turns and commands on a server, or on this machine: sandboxes, their commands and
// files, documents and sessions. It does what the turn command does at a server, with the same
// addresses, tokens, pins and keys. docs/sdk-go.md has examples.
//
// Errors are of type *turnstone.Error.
package client

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/internal/remote/localserver"
	"turnstone.dev/turnstone/internal/remote/runner"
	"turnstone.dev/turnstone/internal/statedir"
)

// Options are the settings of a Client. The zero value uses what the turn command uses.
type Options struct {
	// Host is the server: https://…, http:// on this machine, unix:PATH, the name of a host, or local.
	// Empty: TURN_HOST, else the host that turn host use selected, else this machine, on which the
	// client starts a server if none runs.
	Host string
	// Token is the token of a server; empty: TURN_TOKEN, else that of the host.
	Token string
	// Dir is the state directory; empty: TURN_HOME, else the user's.
	Dir string
	// Program is the path of turn, which serves this machine; empty: that of PATH, else the file beside
	// this program.
	Program string
	// Key is this client's private X25519 key, of 32 bytes; empty: that of the state directory. It owns
	// the sessions and the sandboxes that the client makes.
	Key []byte

	// Session is the name or ID of the client's session, and ContextID another word for it. Empty: a
	// new name, when the client first needs a session.
	Session, ContextID string
	// Branch is the branch of the session; empty: main.
	Branch string
}

// closeTime bounds what Client.Close waits for.
const closeTime = 2 * time.Minute

// A Client is one context: its turns and sandboxes follow each other in one session. It is safe for
// concurrent use.
type Client struct {
	server *remote.Server
	host   *runner.Host
	boxes  *remote.Sandboxes
	branch string

	mu      sync.Mutex
	named   bool // the caller has named the session, or an image: its template may not be the default
	session string
	open    map[turnstone.SandboxID]*Sandbox
	closed  bool
}

// New finds the server, and starts one of this machine if there is none. Close the client.
func New(ctx context.Context, o Options) (*Client, error) {
	if o.Session != "" && o.ContextID != "" && o.Session != o.ContextID {
		return nil, turnstone.Errorf("client.new", turnstone.KindInvalid, "Session and ContextID",
			"are two sessions").WithHint("set one of them")
	}
	if o.Dir == "" {
		o.Dir = os.Getenv("TURN_HOME")
	}
	if o.Token == "" {
		o.Token = os.Getenv("TURN_TOKEN")
	}
	find := hosts.Client{Dir: o.Dir, Token: o.Token}
	if len(o.Key) > 0 {
		var err error
		if find.Key, err = channel.LoadKeyPair(o.Key); err != nil {
			return nil, err
		}
	}
	server, err := serverOf(ctx, o, find)
	if err != nil {
		return nil, err
	}
	c := &Client{server: server, boxes: server.AllSandboxes(), branch: o.Branch,
		named: o.Session != "" || o.ContextID != "", session: first(o.Session, o.ContextID), open: map[turnstone.SandboxID]*Sandbox{}}
	if err := c.openHost(find); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return c, nil
}

// serverOf returns the server that the options and the environment select.
func serverOf(ctx context.Context, o Options, find hosts.Client) (*remote.Server, error) {
	name := first(o.Host, os.Getenv("TURN_HOST"))
	if name == "" {
		var err error
		if name, err = find.Selected(); err != nil {
			return nil, err
		}
	}
	if name != "" && name != hosts.Local && name != hosts.Auto {
		return find.Server(ctx, name)
	}
	start := &localserver.Starter{Dir: o.Dir, Program: o.Program}
	if err := start.Start(ctx); err != nil {
		return nil, err
	}
	return find.Own(ctx, start.Start)
}

func (c *Client) openHost(find hosts.Client) error {
	var o runner.Options
	var failed [2]error
	o.Dir, failed[0] = statedir.Locate(find.Dir)
	witness, err := find.Witness(c.server.Address().String())
	if failed[1] = err; witness != nil {
		o.Witness = witness
	}
	c.host = runner.Open(c.server, o)
	return errors.Join(failed[:]...)
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// Address returns the address of the server, as Options.Host has it.
func (c *Client) Address() string { return c.server.Address().String() }

// SessionName returns the name or ID of the client's session. Without one in the options, it makes a
// name at the first call; the session begins with the first turn or sandbox.
func (c *Client) SessionName() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == "" {
		c.session = "go-" + time.Now().UTC().Format("20060102-150405") + "-" +
			strings.ToLower(rand.Text()[:6])
	}
	return c.session
}

// Close closes the sandboxes that are still open, as Sandbox.Close does, and the connections.
func (c *Client) Close() error {
	c.mu.Lock()
	left := slices.Collect(maps.Values(c.open))
	was := c.closed
	c.closed = true
	c.mu.Unlock()
	if was {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	errs := make([]error, len(left)+1)
	var wg sync.WaitGroup
	for n, s := range left {
		wg.Go(func() { errs[n] = s.Close(ctx) })
	}
	wg.Wait()
	errs[len(left)] = c.host.Close() // it owns the server
	return errors.Join(errs...)
}

// adopt notes a sandbox that Close closes.
func (c *Client) adopt(s *Sandbox) *Sandbox {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[s.id] = s
	return s
}

func (c *Client) forget(id turnstone.SandboxID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, id)
}

// Usage returns what the client's tenant used since a time, or this month if it is zero: in one
// session, by name or ID, or in all.
func (c *Client) Usage(ctx context.Context, session string, since time.Time) (*turnstone.UsageReport,
	error) {
	return c.server.Usage(ctx, session, since)
}

// Verify verifies the statements of a turn and its ancestors, with the keys that the client trusts.
func (c *Client) Verify(ctx context.Context, ref string) (*turnstone.VerifyReport, error) {
	return c.host.Verify(ctx, turnstone.VerifyRequest{Ref: ref})
}

// VerifyReceipt verifies a receipt alone, offline, with the keys of this machine's lists, its pins, or
// those of trust: "TYPE BASE64", or files in OpenSSH's format allowed_signers.
func (c *Client) VerifyReceipt(ctx context.Context, markdown string, trust ...string) (
	*turnstone.VerifyReport, error) {
	return c.host.VerifyReceipt(ctx, "receipt.md", []byte(markdown), trust)
}

package client

import (
	"context"
	"crypto/rand"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/sandboxes/access"
)

// SandboxOptions are the settings of a sandbox. Zero values are the template's or the server's.
type SandboxOptions struct {
	Image string // a template such as "python", or an image of a registry; empty: that of the session
	Name  string // of the sandbox; may be empty
	// Session and Branch are another session than the client's, and another branch.
	Session, Branch string
	NoSession       bool // the sandbox belongs to no session, and nothing is kept of it

	Env     map[string]string // for all processes
	Secrets map[string]string // the same; the server does not see them, and turns have them masked
	TTL     time.Duration     // from ready to the stop; 0: one hour
	CPUs    int
	Memory  turnstone.Bytes
	Disk    turnstone.Bytes
	Network *bool    // whether there is a network
	Allow   []string // addresses and names that its network reaches; docs/network.md
	Deny    []string
	Live    bool // on a substrate whose sandboxes can be paused and forked
	// Progress gets a line when the sandbox waits for the build of its template; nil: slog's default
	// logger gets it.
	Progress func(line string)
}

// defaultTTL is the time of a sandbox whose caller names none.
const defaultTTL = time.Hour

// A Sandbox is a machine that stays between commands. It is safe for concurrent use.
type Sandbox struct {
	client *Client
	id     turnstone.SandboxID
	name   string
	// session and branch are where its work is kept; session is empty if nothing is.
	session, branch string
	workdir         string // where relative paths begin; may be empty
	access          *access.Access

	mu     sync.Mutex
	turn   *turnstone.TurnReport
	closed bool
}

// Sandbox makes a sandbox, which begins on the head of its branch, and returns it when it is ready.
func (c *Client) Sandbox(ctx context.Context, o SandboxOptions) (*Sandbox, error) {
	spec := sandboxes.Spec{Name: o.Name, Image: o.Image, Env: pairs(o.Env), Secrets: pairs(o.Secrets),
		TTL: o.TTL, Live: o.Live, Session: o.Session, Branch: o.Branch, Shape: turnstone.Shape{
			CPUs: o.CPUs, Memory: o.Memory, Disk: o.Disk, Network: o.Network == nil || *o.Network}}
	if spec.TTL == 0 {
		spec.TTL = defaultTTL
	}
	if !o.NoSession && spec.Session == "" {
		spec.Session, spec.Branch = c.SessionName(), first(o.Branch, c.branch)
	}
	if o.NoSession {
		spec.Session, spec.Branch = "", ""
	}
	if len(o.Allow)+len(o.Deny) > 0 {
		spec.Network = &turnstone.NetworkSpec{Allow: o.Allow, Deny: o.Deny}
	}
	done := sayIfBuilt(ctx, c.server.Templates, c.waitsFor(o), o.Progress)
	i, err := c.boxes.Create(ctx, spec, nil)
	done()
	if err != nil {
		return nil, err
	}
	return c.box(i, spec.Session, spec.Branch), nil
}

// Sandboxes returns the sandboxes of the server that were not removed.
func (c *Client) Sandboxes(ctx context.Context) ([]sandboxes.Info, error) { return c.boxes.List(ctx) }

// box returns a sandbox, which the client closes.
func (c *Client) box(i sandboxes.Info, session, branch string) *Sandbox {
	a := *c.boxes.Access
	a.Kept = new(access.Kept)
	return c.adopt(&Sandbox{client: c, id: i.ID, name: i.Name, session: session, workdir: i.Workdir,
		branch: first(branch, "main"), access: &a})
}

// pairs returns NAME=VALUE in the order of the names.
func pairs(m map[string]string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, name+"="+m[name])
	}
	return all
}

// ID returns the sandbox's ID.
func (s *Sandbox) ID() turnstone.SandboxID { return s.id }

// Name returns the sandbox's name; it may be empty.
func (s *Sandbox) Name() string { return s.name }

// Session returns the name or ID of the session that keeps the sandbox's work; empty: none does.
func (s *Sandbox) Session() string { return s.session }

// Turn returns the newest turn that was kept of the sandbox; nil: none was.
func (s *Sandbox) Turn() *turnstone.TurnReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turn
}

// Info asks the server what the sandbox is now.
func (s *Sandbox) Info(ctx context.Context) (sandboxes.Info, error) {
	return s.client.boxes.Find(ctx, string(s.id))
}

// Pause pauses the machine. Its connections end.
func (s *Sandbox) Pause(ctx context.Context) error {
	s.access.Kept.Drop()
	return s.client.boxes.Pause(ctx, s.id)
}

// Resume lets the machine continue.
func (s *Sandbox) Resume(ctx context.Context) error { return s.client.boxes.Resume(ctx, s.id) }

// Fork clones the running machine n times, with its processes and their memory. If some clones cannot be
// made, it returns the others with an error.
func (s *Sandbox) Fork(ctx context.Context, n int) ([]*Sandbox, error) {
	defer s.access.Kept.Drop() // a fork ends connections
	infos, err := s.client.boxes.Fork(ctx, s.id, sandboxes.Fork{Count: n, TTL: defaultTTL}, nil)
	var all []*Sandbox
	for _, i := range infos {
		all = append(all, s.client.box(i, s.session, s.branch))
	}
	return all, err
}

// Clone returns another sandbox with the same files and environment. Of an open sandbox it has the
// processes too, if its substrate can fork; of a closed one it begins on the turn that was kept of it,
// in a branch of its own.
func (s *Sandbox) Clone(ctx context.Context) (*Sandbox, error) {
	if s.session == "" || !s.isClosed() {
		clones, err := s.Fork(ctx, 1)
		if len(clones) == 1 {
			return clones[0], nil
		}
		kind := turnstone.KindOf(err)
		if s.session == "" || kind != turnstone.KindInvalid && kind != turnstone.KindUnavailable {
			return nil, err
		}
		if _, err := s.Commit(ctx); err != nil {
			return nil, err
		}
	}
	ref := s.session + "@" + s.branch
	if t := s.Turn(); t != nil {
		ref = string(t.ID)
	}
	branch := "clone-" + strings.ToLower(rand.Text()[:8])
	if _, err := s.client.host.Fork(ctx, ref, branch); err != nil {
		return nil, err
	}
	return s.client.Sandbox(ctx, SandboxOptions{Session: s.session, Branch: branch})
}

// Commit keeps the work in the sandbox as a turn of its session, and the sandbox continues on it. The
// turn is nil if nothing was done since the last one.
func (s *Sandbox) Commit(ctx context.Context) (*turnstone.TurnReport, error) {
	defer s.access.Kept.Drop() // a commit ends connections
	t, err := s.client.boxes.Commit(ctx, s.id)
	if err == nil && t != nil {
		s.mu.Lock()
		s.turn = t
		s.mu.Unlock()
	}
	return t, err
}

func (s *Sandbox) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close ends the sandbox. Its session keeps a turn of what was done: see Turn. If that fails, the sandbox
// stays, and Close can be repeated.
func (s *Sandbox) Close(ctx context.Context) error {
	if s.isClosed() {
		return nil
	}
	if s.session != "" {
		if _, err := s.Commit(ctx); err != nil && !over(err) {
			return err
		}
	}
	return s.end(ctx)
}

// Discard ends the sandbox, and nothing is kept of what was done since the last turn.
func (s *Sandbox) Discard(ctx context.Context) error {
	if s.isClosed() {
		return nil
	}
	if s.session != "" {
		err := s.client.boxes.Discard(ctx, s.id)
		if err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
			return err
		}
	}
	return s.end(ctx)
}

// over reports the error about a sandbox that has ended by itself, or was removed.
func over(err error) bool {
	kind := turnstone.KindOf(err)
	return kind == turnstone.KindNotFound || kind == turnstone.KindDead
}

func (s *Sandbox) end(ctx context.Context) error {
	s.access.Kept.Drop()
	if err := s.client.boxes.Remove(ctx, s.id); err != nil && turnstone.KindOf(err) != turnstone.KindNotFound {
		return err
	}
	s.access.Kept.Close()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.client.forget(s.id)
	return nil
}

// An Exposed is a port of a sandbox at an address of this machine.
type Exposed struct {
	Address string // HOST:PORT
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // after done
}

// Expose forwards connections of a loopback address of this machine to a TCP port of the sandbox,
// through its encrypted channel, until Close.
func (s *Sandbox) Expose(ctx context.Context, port int) (*Exposed, error) {
	if port < 1 || port > 65535 {
		return nil, turnstone.Errorf("sandbox.expose", turnstone.KindInvalid, "the port",
			"is %d, not between 1 and 65535", port)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, turnstone.NewError("sandbox.expose", turnstone.KindUnavailable, "127.0.0.1", err)
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e := &Exposed{Address: l.Addr().String(), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		err := s.client.boxes.Expose(serving, s.id, uint16(port), l, nil)
		if serving.Err() == nil {
			e.err = err
		}
	}()
	return e, nil
}

// Close ends the forwarding, and waits for its connections. The error says why it had ended before.
func (e *Exposed) Close() error {
	e.cancel()
	<-e.done
	return e.err
}

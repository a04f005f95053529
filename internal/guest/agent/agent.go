// Package agent is the program inside a sandbox. It starts processes, keeps the shell session and
// answers the commands of package wire. Package files works on files for it, and package machine
// brings up the guest around it.
//
// The agent trusts its clients with the sandbox, but not with one another: a client's input, or its
// refusal to read, must not block other clients. The agent does not trust the processes beside it:
// it reads files that steps leave behind only within bounds.
package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/guest/files"
	"turnstone.dev/turnstone/internal/guest/journal"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/internal/guest/record"
	"turnstone.dev/turnstone/wire"
)

// Options configure an agent. The zero value serves in the process's own root, without control
// groups: processes are signaled by session.
type Options struct {
	RunDir string // for scripts and captures, as processes see it; default "/run/turn"
	Chroot string // the root of processes; default: the agent's own root
	Cwd    string // the session's first working directory; default "/workspace"
	Env    []string
	Keep   int64 // bytes kept of each output of a process; default 1 MiB
	// Tracing, if set, records the commands of steps. The caller keeps ownership.
	Tracing *Tracing

	FDs    string          // the directory of the agent's open files; default "/proc/self/fd/"
	Groups *process.Groups // nil: none
	Reap   process.Reaper  // nil: a separate wait for each process
	Space  *process.Space  // nil: processes see the agent
	// nil: Sandbox.configure is rejected
	Configure func(*wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error)
	// nil: State.freeze is rejected
	Disks *Disks
	// nil: Sandbox.network is rejected
	Card Card
	// nil: Sandbox.suspend and Sandbox.renew are rejected
	Renew func(*wire.SandboxRenewParams) (*wire.SandboxRenewResult, error)
	// nil: all commands are performed when they come
	Script Script
}

// A Script answers commands that were performed before the host could send them.
type Script interface {
	// Answers reports whether the command is answered in any state of the sandbox.
	Answers(method string) bool
	// Around answers a command, for which it may call next.
	Around(ctx context.Context, c *wire.Conn, method string, params any,
		next func() (any, error)) (any, error)
}

// defaultEnv is the initial environment of every process, beside what its user's account says.
func defaultEnv() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "TERM=dumb",
	}
}

// ofUser returns the environment of a process that begins with env. Of a user other than root the account is looked up
// when the process starts; root's is not, because an image may have no accounts.
func ofUser(user string, env []string) []string {
	if user != "" {
		return env
	}
	return process.MergeEnv([]string{"HOME=/root", "USER=root", "SHELL=/bin/bash"}, env)
}

// procFDs is the directory in which a process finds its open files as paths.
const procFDs = "/proc/self/fd/"

// maxConns bounds the connections of one agent, without channels.
const maxConns = 64

// An Agent answers the commands of any number of connections. It is safe for
// concurrent use.
type Agent struct {
	opt         Options
	dispatcher  *wire.Dispatcher
	procs       *process.Table
	shell       *shell
	files       *files.Files
	journal     *journal.Journal
	activity    *activity
	records     *record.Table
	lingers     lingers
	channels    *channels
	defaults    defaults
	secrets     record.Secrets
	forwards    chan struct{}    // connections of Sandbox.connect
	remote      *wire.Dispatcher // for channels, whose clients are not the host
	configuring atomic.Bool      // Sandbox.configure runs, or has succeeded
	configured  atomic.Bool
	fresh       atomic.Bool // random numbers are the sandbox's own, and secret
	freezing    sync.Mutex
	frozen      atomic.Bool // between State.freeze and State.thaw
	renewing    sync.Mutex
	suspended   atomic.Bool               // between Sandbox.suspend and Sandbox.renew
	held        atomic.Bool               // between State.export with hold and Sandbox.renew
	port        atomic.Pointer[wire.Port] // the port of Serve; nil before

	mu      sync.Mutex
	clients map[*wire.Conn]*client
	opening map[wire.LinkStream]struct{} // streams that are not connections yet
	wg      sync.WaitGroup
}

// New returns an agent. Close it after serving.
func New(opt Options) (*Agent, error) {
	if opt.RunDir == "" {
		opt.RunDir = "/run/turn"
	}
	if opt.Cwd == "" {
		opt.Cwd = "/workspace"
	}
	if opt.Env == nil {
		opt.Env = defaultEnv()
	}
	if opt.FDs == "" {
		opt.FDs = procFDs
	}
	a := &Agent{opt: opt, journal: journal.New(), activity: newActivity(), records: record.NewTable(),
		forwards: make(chan struct{}, maxForwards), clients: make(map[*wire.Conn]*client),
		opening: make(map[wire.LinkStream]struct{})}
	a.channels = newChannels(a)
	a.configured.Store(opt.Configure == nil)
	a.fresh.Store(opt.Configure == nil)
	var err error
	a.files = files.NewFiles(opt.Chroot, opt.FDs,
		func(c *wire.Conn) *files.Watches { return &a.client(c).watches }, a.ownerOf)
	po := process.Options{Chroot: opt.Chroot, Groups: opt.Groups, Reaper: opt.Reap,
		Space: opt.Space, Keep: opt.Keep, MkdirAll: files.NewRoot(a.files).MkdirAll}
	if opt.Chroot != "" {
		po.Root = files.NewRoot(a.files)
	}
	a.procs, err = process.NewTable(po)
	if err != nil {
		return nil, err
	}
	if a.shell, err = newShell(a); err != nil {
		return nil, errors.Join(err, a.procs.Close())
	}
	a.dispatcher, a.remote = a.dispatch(a.gate), a.dispatch(a.remoteGate)
	return a, nil
}

// dispatch maps each command to its handler.
func (a *Agent) dispatch(gate func(method string) error) *wire.Dispatcher {
	d := wire.NewDispatcher()
	wire.RegisterSandbox(d, &sandbox{a})
	wire.RegisterProcess(d, &processes{a})
	wire.RegisterShell(d, a.shell)
	wire.RegisterFileSystem(d, files.NewServer(a.files))
	wire.RegisterState(d, a.shell)
	wire.RegisterTrace(d, a.journal)
	d.Gate = gate
	d.Observe = a.journal.Observe
	if a.opt.Script != nil {
		d.Around = a.opt.Script.Around
	}
	return d
}

// gate rejects commands that must not come before Sandbox.configure.
func (a *Agent) gate(method string) error {
	refuse := func(kind turnstone.Kind, why, hint string) error {
		return turnstone.Errorf(turnstone.Op(method), kind, "sandbox", "%s", why).
			WithHint(hint)
	}
	switch {
	case a.opt.Script != nil && a.opt.Script.Answers(method):
		return nil
	case a.suspended.Load() && method != wire.MethodSandboxRenew:
		return refuse(turnstone.KindUnavailable, "it is suspended", "call Sandbox.renew first")
	case a.frozen.Load() && needsDisk(method):
		return refuse(turnstone.KindUnavailable, "its disks are frozen", "call State.thaw first")
	case a.held.Load() && needsDisk(method):
		return refuse(turnstone.KindUnavailable, "its processes are stopped",
			"call Sandbox.suspend and Sandbox.renew first")
	case !a.configured.Load() && method != wire.MethodSandboxConfigure:
		return refuse(turnstone.KindInvalid, "it is not configured yet",
			"call Sandbox.configure first")
	}
	return nil
}

// Serve answers the connections that come over the links on port, one after another, until the last
// link ends, then closes the port. The error is nil if the host closed the port in good order.
func (a *Agent) Serve(ctx context.Context, port io.ReadWriteCloser) error {
	p := wire.NewPort(port, false)
	for {
		link, err := p.Link()
		if err != nil {
			return err
		}
		again, err := a.serveLink(ctx, p, link)
		if !again {
			return err
		}
	}
}

// serveLink answers the connections of one link. Another link follows if the host ended this link
// to take a snapshot.
func (a *Agent) serveLink(ctx context.Context, p *wire.Port,
	link *wire.Link) (again bool, err error) {
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	a.port.Store(p)
	for {
		s, err := link.Accept()
		if err != nil {
			a.hangUp()
			if p.Ended() {
				err := p.End(ctx)
				return err == nil, err
			}
			_ = link.Close()
			if hungUp(err) || ctx.Err() != nil {
				return false, nil
			}
			return false, err
		}
		a.accept(s)
	}
}

// accept serves a stream of the link in the background: as a channel if it begins like one, and
// otherwise as a connection of the host.
func (a *Agent) accept(s wire.LinkStream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.full() {
		_ = s.Close()
		return
	}
	a.opening[s] = struct{}{}
	a.wg.Go(func() {
		stream, release, d, err := a.open(s)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.opening, s)
		if err != nil {
			release()
			_ = s.Close()
			return
		}
		a.serve(stream, d, release)
	})
}

// open waits for a stream's first byte and, if the stream is a channel, for its handshake. It
// returns the stream of the connection, and the commands that its client may use.
func (a *Agent) open(s wire.LinkStream) (stream io.ReadWriteCloser, release func(),
	d *wire.Dispatcher, err error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(s, first); err != nil {
		return nil, func() {}, nil, err
	}
	whole := &begun{LinkStream: s, first: first}
	if first[0] != channelByte {
		return whole, func() {}, a.dispatcher, nil
	}
	conn, release, err := a.channels.accept(whole)
	return conn, release, a.remote, err
}

// A begun is a stream whose first bytes were read already.
type begun struct {
	wire.LinkStream
	first []byte
}

// Read implements io.Reader.
func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		return b.LinkStream.Read(p)
	}
	n := copy(p, b.first)
	b.first = b.first[n:]
	return n, nil
}

// hungUp reports whether the host closed the port. The error depends on the kind of port, and on
// whether a write was in progress.
func hungUp(err error) bool {
	for _, end := range []error{io.EOF, io.ErrClosedPipe, os.ErrClosed, net.ErrClosed,
		syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// ServeConn answers the commands of one connection, in the background until the connection ends. It
// returns nil if there are too many connections; the caller then closes the stream.
func (a *Agent) ServeConn(stream io.ReadWriteCloser) *wire.Conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.full() {
		return nil
	}
	return a.serve(stream, a.dispatcher, func() {})
}

// full reports whether there are too many connections, without channels. a.mu is held.
func (a *Agent) full() bool {
	return len(a.clients)+len(a.opening)-a.channels.count() >= maxConns
}

// serve is ServeConn for the commands of d. It calls release after the connection's end. a.mu is
// held.
func (a *Agent) serve(stream io.ReadWriteCloser, d *wire.Dispatcher, release func()) *wire.Conn {
	c := wire.NewConn(stream, wire.Options{Dispatcher: d})
	cl := newClient(a, c)
	a.clients[c] = cl
	a.wg.Go(func() {
		defer release()
		<-c.Done()
		cl.close()
		c.Wait()
		a.mu.Lock()
		delete(a.clients, c)
		a.mu.Unlock()
	})
	return c
}

// client returns the agent's state for a connection. A command may arrive before ServeConn has
// registered its connection, and then waits for the registration; a command that arrives after the
// connection's end gets a closed client.
func (a *Agent) client(c *wire.Conn) *client {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cl := a.clients[c]; cl != nil {
		return cl
	}
	cl := newClient(a, c)
	cl.close()
	return cl
}

// hangUp ends all connections.
func (a *Agent) hangUp() {
	a.mu.Lock()
	for s := range a.opening {
		s.Abort()
	}
	for c := range a.clients {
		_ = c.Close()
	}
	a.mu.Unlock()
	a.wg.Wait()
}

// Close ends all connections, kills every process that the agent started, and waits until none is
// left.
func (a *Agent) Close() error {
	a.hangUp()
	err := a.procs.Close()
	a.shell.wait()
	a.files.Close()
	return err
}

// path returns the agent's own name for a path in the processes' root.
func (a *Agent) path(p string) string {
	if a.opt.Chroot == "" {
		return p
	}
	return a.opt.Chroot + "/" + p
}

func Invalid(op turnstone.Op, subject, msg string) error {
	return turnstone.Errorf(op, turnstone.KindInvalid, brief.Subject(subject), "%s", msg)
}

func Failed(subject string, err error) error {
	return turnstone.NewError(wire.MethodSandboxConfigure, turnstone.KindUnavailable, subject, err).
		WithHint("see the sandbox's console, and report this")
}

// Package sessions answers the domains Session and Template of the wire: it is a node's executor for
// the client of a channel, who sees the sessions that are its own, or that it was admitted to.
package sessions

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/hostpath"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/wire"
)

// An Executor has the operations on sessions, the store and templates: see executor.Executor.
type Executor interface {
	Sessions(ctx context.Context) ([]turnstone.SessionInfo, error)
	Session(ctx context.Context, nameOrID string) (*turnstone.Graph, error)
	Log(ctx context.Context, ref string, limit int) (*turnstone.Graph, error)
	Expand(ctx context.Context, ref, named string) (string, error)
	CurrentSession(ctx context.Context, named string) (turnstone.Session, error)
	Show(ctx context.Context, ref string) (*turnstone.TurnInfo, error)
	Receipt(ctx context.Context, ref string) ([]byte, error)
	Trace(ctx context.Context, ref string, each func(turnstone.TraceLine) error) error
	ListFiles(ctx context.Context, ref, name string, recursive bool,
		each func(turnstone.FileInfo) error) error
	OpenFile(ctx context.Context, ref, name string) (io.ReadCloser, error)
	PackFiles(ctx context.Context, ref, name string, w io.Writer,
		skipped func(name, why string)) error
	Diff(ctx context.Context, req turnstone.DiffRequest) (*turnstone.StateDiff, error)
	Compare(ctx context.Context, refs []string) (*turnstone.CompareReport, error)
	Prepare(ctx context.Context, ref string) error
	Fork(ctx context.Context, ref, name string) (turnstone.Branch, error)
	ForkLive(ctx context.Context, ref, name string) (turnstone.Branch, error)
	Tag(ctx context.Context, ref, name string) (turnstone.Tag, error)
	Untag(ctx context.Context, nameOrID, tag string) error
	Rename(ctx context.Context, nameOrID, name string) (turnstone.Session, error)
	RemoveSession(ctx context.Context, nameOrID string) (turnstone.Session, error)
	RemoveBranch(ctx context.Context, nameOrID, branch string) error
	Merge(ctx context.Context, req executor.MergeRequest) (*turnstone.MergeReport, error)
	Export(ctx context.Context, req executor.ExportRequest, w io.Writer) (
		*turnstone.ExportReport, error)
	Import(ctx context.Context, req executor.ImportRequest, r io.Reader) (
		*turnstone.ImportReport, error)
	Verify(ctx context.Context, req turnstone.VerifyRequest) (*turnstone.VerifyReport, error)
	SignTurn(ctx context.Context, ref string) (*turnstone.VerifiedTurn, error)
	Heads(ctx context.Context, nameOrID string) ([]turnstone.LoggedHead, error)
	Rerunner
	Keeper
	Sealer
}

// A Rerunner runs turns again.
type Rerunner interface {
	Replay(ctx context.Context, ref string, o executor.ReplayOptions, obs executor.Observer) (
		*turnstone.ReplayReport, error)
	ReplayRange(ctx context.Context, req executor.RangeRequest, obs executor.Observer) (
		*turnstone.RangeReport, error)
	Frozen(ctx context.Context, name string, receipt []byte, req executor.Request,
		obs executor.Observer) (*turnstone.FrozenReport, error)
	Bisect(ctx context.Context, req executor.BisectRequest, obs executor.Observer) (
		*turnstone.BisectReport, error)
}

// A Keeper has the operations that are about no session.
type Keeper interface {
	GC(ctx context.Context, req turnstone.GCRequest) (*turnstone.GCReport, error)
	Fsck(ctx context.Context) (*turnstone.FsckReport, error)
	Usage(ctx context.Context) (*turnstone.Usage, error)
	Homes(ctx context.Context) ([]turnstone.HomeInfo, error)
	HasHome(ctx context.Context, name string) error
	RemoveHome(ctx context.Context, name string) error
	BuildTemplate(ctx context.Context, nameOrPath string, req executor.TemplateBuild) (
		*turnstone.Template, error)
	RemoveTemplate(ctx context.Context, req executor.TemplateRemoval) ([]turnstone.Session, error)
	PruneTemplates(ctx context.Context, req executor.TemplatePrune) (
		*turnstone.TemplatePruned, error)
}

// A Lister lists templates: see template.Store.
type Lister interface {
	List(ctx context.Context) ([]template.Entry, error)
}

// Options are the parts of a Service. A zero number selects its default.
type Options struct {
	Executor  Executor
	Owners    *owners.Store
	Templates Lister
	Dir       string // for what clients send; others cannot write it
	// Paths hides the node's paths in what clients get; nil: they stay.
	Paths *hostpath.Hider
	// Commands is the number of commands of one client that may run at the same time, and Heavy
	// that of all clients' commands that run machines, or read or write much. Defaults: 16 and 8.
	Commands, Heavy int
}

const (
	defaultCommands = 16
	defaultHeavy    = 8
)

// A Service serves the sessions of one tenant. It is safe for concurrent use.
type Service struct {
	o     Options
	heavy chan struct{}
	now   func() time.Time

	mu     sync.Mutex
	boxes  Sandboxes // nil: none
	ending bool      // no more heavy commands
}

// New returns a service.
func New(o Options) *Service {
	if o.Commands == 0 {
		o.Commands = defaultCommands
	}
	if o.Heavy == 0 {
		o.Heavy = defaultHeavy
	}
	return &Service{o: o, heavy: make(chan struct{}, o.Heavy), now: time.Now}
}

// Register registers the commands for the client of a channel. Contexts of what the client starts
// with other commands are made with keyed: they have the key that the client has sent, which stays
// until they end.
func (s *Service) Register(d *wire.Dispatcher, c owners.Caller) (
	keyed func(context.Context) context.Context) {
	v := &served{Service: s, caller: c, x: s.o.Executor, key: &unlocked{x: s.o.Executor},
		running: make(chan struct{}, s.o.Commands)}
	wire.RegisterSession(d, v)
	wire.RegisterTemplate(d, &templates{v})
	return v.key.use
}

// served answers one client.
type served struct {
	*Service
	caller  owners.Caller
	x       Executor
	key     *unlocked
	running chan struct{}
}

// weight says what an operation costs.
type weight bool

const (
	light weight = false
	heavy weight = true
)

// do runs an operation, whose context sees only what the client may do need with.
func (v *served) do(ctx context.Context, need owners.Need, w weight,
	f func(ctx context.Context) error) error {
	full := func(what string, n int) error {
		return turnstone.Errorf("session.limit", turnstone.KindExhausted, what,
			"%d commands run already", n).WithHint("wait until one of them has ended")
	}
	select {
	case v.running <- struct{}{}:
		defer func() { <-v.running }()
	default:
		return full("this connection", cap(v.running))
	}
	if w == heavy {
		select {
		case v.heavy <- struct{}{}:
			defer func() { <-v.heavy }()
		default:
			return full("the node", cap(v.heavy))
		}
		if v.ends() { // with the place: Drain has waited for it, or waits
			return turnstone.Errorf("session.start", turnstone.KindUnavailable, "the node", "stops")
		}
	}
	ctx, cancel := context.WithCancel(ctx) // its end releases the client's key
	defer cancel()
	return f(v.o.Owners.Limit(v.key.use(ctx), v.caller, need))
}

func (s *Service) ends() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// Drain starts no more commands that run machines, or read or write much, and waits until those that
// run have ended. The error is that of ctx.
func (s *Service) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	for range cap(s.heavy) {
		select {
		case s.heavy <- struct{}{}:
			defer func() { <-s.heavy }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// forbidden returns the error for what only the operator may do.
func forbidden(what string) error {
	return turnstone.Errorf("session.operator", turnstone.KindInvalid, what,
		"only the node's operator may do that").
		WithHint("the operator does it on the node's machine: over the socket of a process that is " +
			"controller and node, or with TURN_HOST=local and the node's TURN_HOME")
}

// send runs f with the stream id, and ends the stream. With an error the stream is aborted.
func send(c *wire.Conn, id wire.StreamID, f func(w io.Writer) error) error {
	out, err := c.Sender(id)
	if err != nil {
		return err
	}
	buf := bufio.NewWriterSize(out, 64<<10)
	if err = f(buf); err == nil {
		err = buf.Flush()
	}
	if err != nil {
		out.Abort(err)
		return err
	}
	return out.Close()
}

// report runs f and sends its result as JSON.
func report[T any](ctx context.Context, v *served, c *wire.Conn, id wire.StreamID,
	need owners.Need, w weight, f func(ctx context.Context) (T, error)) error {
	return v.do(ctx, need, w, func(ctx context.Context) error {
		r, err := f(ctx)
		if err != nil {
			return err
		}
		return send(c, id, func(w io.Writer) error { return json.NewEncoder(w).Encode(r) })
	})
}

// small runs f and returns its result as JSON.
func small[T any](ctx context.Context, v *served, need owners.Need, w weight,
	f func(ctx context.Context) (T, error)) (raw json.RawMessage, err error) {
	err = v.do(ctx, need, w, func(ctx context.Context) error {
		r, err := f(ctx)
		if err == nil {
			raw, err = json.Marshal(r)
		}
		return err
	})
	return raw, err
}

// lines sends what f tells as lines of JSON.
func lines[T any](ctx context.Context, v *served, c *wire.Conn, id wire.StreamID,
	f func(ctx context.Context, each func(T) error) error) error {
	return v.do(ctx, owners.Read, light, func(ctx context.Context) error {
		return send(c, id, func(w io.Writer) error {
			e := json.NewEncoder(w)
			return f(ctx, func(one T) error { return e.Encode(one) })
		})
	})
}

func invalid(what, format string, args ...any) error {
	return turnstone.Errorf("session.request", turnstone.KindInvalid, what, format, args...)
}

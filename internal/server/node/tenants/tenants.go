// Package tenants opens the state of each tenant of a node. The operator's tenant, "local", has the
// node's state directory. Another tenant T has the state directory tenants/T in it, with sandboxes,
// sessions and templates of its own, and shares what is public: built templates of the program, the
// guest kernel and the snapshots of templates.
package tenants

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/server/node/sessions"
	"turnstone.dev/turnstone/internal/server/node/tenants/public"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// Options are the settings of a Set. A zero number selects its default.
type Options struct {
	// Executor are the options of every tenant's executor. Dir is the node's state directory, and
	// Holder keeps sandboxes.
	Executor executor.Options
	// Node is the name of the node, and Retries bounds how often a turn of a lost one starts again.
	Node    string
	Retries int
	// Turns is the number of turns of one tenant that may run at the same time. Default: 16.
	Turns int
	// Wait bounds how long a turn waits for a place, and Waiting how many of a tenant do: see
	// turns.NewQueue.
	Wait    time.Duration
	Waiting int
	// Tenants is the number of tenants that may have state here. Default: 1,000.
	Tenants int
	// Idle is how long no call has used the state of a tenant without content when Forget removes it. Default: ten
	// minutes.
	Idle time.Duration
	// Warm has the machines of all tenants that wait for the next turns of their sessions; nil: none
	// wait. The Set closes it.
	Warm *Warm
	// Bucket is that of all sessions, which its owner runs.
	Bucket *node.Bucket
	// Runner returns what runs the turns of a tenant, around the tenant's executor; nil: that itself.
	Runner func(tenant string, x Runner) Runner
}

// A Runner runs turns: see executor.Executor.
type Runner = turns.Executor

// The machines that wait for the next turns of sessions.
type (
	Warm        = turns.Warm
	WarmOptions = turns.WarmOptions
)

// NewWarm returns an empty shelf: see turns.NewWarm.
func NewWarm(o WarmOptions) *Warm { return turns.NewWarm(o) }

const (
	defaultTurns   = 16
	defaultTenants = 1000
	defaultIdle    = 10 * time.Minute
	recent         = time.Minute // how long a tenant without content keeps its place from a new one
	folder         = "tenants"   // of the node's state directory
	serverFolder   = "server"    // of each tenant's: what only a server keeps
	ownersFolder   = "owners"    // in it
	receivedFolder = "received"
)

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// A State is what a node keeps for one tenant. Its parts are safe for concurrent use.
type State struct {
	Tenant    string
	Dir       *statedir.Dir
	Executor  *executor.Executor
	Runner    Runner // runs turns with Executor
	Sandboxes *sandboxes.Store
	Turns     *turns.Service
	Templates *template.Store
	Owners    *owners.Store // of its sessions
	Database  string        // of its sessions, which other machines use too; empty: in Dir

	sessions *sessions.Service
	root     *statedir.Dir // of the node, which has the tenant's
	bucket   *node.Bucket
	common   *turns.Shared // with other nodes; nil: the sessions are this node's

	usage  usage         // for Forget
	shared *State        // the operator's; nil in itself
	images public.Images // of the operator's state alone: links of its templates' images
}

// Folder creates the folder of the tenant's state directory that keeps what only a server needs, or
// one below it, and returns its path.
func (s *State) Folder(elem ...string) (string, error) {
	dir, err := s.Dir.MkdirAll(append([]string{serverFolder}, elem...)...)
	if err != nil {
		return "", turnstone.Classify("tenant.open", turnstone.KindUnavailable, dir, err,
			"free space in the node's state directory")
	}
	return dir, nil
}

// ServeSandboxes lets clients of the tenant's sessions keep the work of x as turns.
func (s *State) ServeSandboxes(x sessions.Sandboxes) { s.sessions.ServeSandboxes(x) }

// DefaultImage is the template of requests that name none.
const DefaultImage = executor.DefaultImage

// RemoveTemplate removes the build of a template: see executor.Executor.RemoveTemplate.
func (s *State) RemoveTemplate(ctx context.Context, name string) ([]turnstone.Session, error) {
	return s.Executor.RemoveTemplate(ctx, executor.TemplateRemoval{Name: name})
}

// Operator reports whether it is the state of the node's operator.
func (s *State) Operator() bool { return s.shared == nil }

func (s *State) close() error {
	return errors.Join(s.Turns.Close(), s.Executor.Close(), s.common.Close())
}

// A Set is the tenants of a node. Its methods are safe for concurrent use.
type Set struct {
	o     Options
	root  *statedir.Dir
	turns *turns.Queue

	mu     sync.Mutex
	closed bool
	all    map[string]*State
}

// Open returns the tenants that have state in the state directory that o names. Close them.
func Open(ctx context.Context, o Options) (*Set, error) {
	if o.Turns == 0 {
		o.Turns = defaultTurns
	}
	o.Tenants, o.Idle = cmp.Or(o.Tenants, defaultTenants), cmp.Or(o.Idle, defaultIdle)
	root, err := statedir.Open(o.Executor.Dir)
	if err != nil {
		return nil, err
	}
	if err := public.Key(ctx, root); err != nil {
		return nil, err
	}
	s := &Set{o: o, root: root, turns: turns.NewQueue(o.Wait, o.Waiting), all: make(map[string]*State)}
	names, err := s.names()
	for _, name := range names {
		var st *State
		if err == nil {
			st, err = s.open(ctx, name)
		}
		if err == nil {
			s.all[name] = st
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.forget(0)
	return s, nil
}

// names lists the tenants with state, the operator's first: the others share its parts.
func (s *Set) names() ([]string, error) {
	names := []string{auth.OperatorTenant}
	entries, err := os.ReadDir(s.root.Path(folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, failed("", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !validName.MatchString(e.Name()) || e.Name() == auth.OperatorTenant {
			continue
		}
		if _, err := os.Stat(s.root.Path(folder, e.Name(), serverFolder)); err == nil { // else it is forgotten
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Of returns the state of a tenant, which it makes if the tenant is new, and keeps it open until ctx ends: see Use.
// The error is of kind Exhausted if there are too many tenants.
func (s *Set) Of(ctx context.Context, tenant string) (*State, error) {
	if !validName.MatchString(tenant) {
		return nil, turnstone.Errorf("tenant.open", turnstone.KindInvalid, "the tenant",
			"is not 1 to 64 letters, digits, dots, underscores and hyphens")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[tenant] == nil && len(s.all) >= s.o.Tenants {
		s.mu.Unlock()
		s.forget(min(recent, s.o.Idle))
		s.mu.Lock()
	}
	if st := s.all[tenant]; st != nil {
		s.use(ctx, st)
		return st, nil
	}
	if s.closed {
		return nil, turnstone.Errorf("tenant.open", turnstone.KindUnavailable, "the node", "stops")
	}
	if len(s.all) >= s.o.Tenants {
		return nil, turnstone.Errorf("tenant.open", turnstone.KindExhausted, "the node",
			"has state of %d tenants, and may have no more", len(s.all))
	}
	st, err := s.open(ctx, tenant)
	if err != nil {
		return nil, err
	}
	s.all[tenant] = st
	s.use(ctx, st)
	return st, nil
}

// Known returns the state of a tenant that has some. A tenant without state has no objects: the
// error is of kind NotFound, and says nothing of the tenant.
func (s *Set) Known(tenant string) (*State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.all[tenant]; st != nil {
		return st, nil
	}
	return nil, turnstone.Errorf("tenant.open", turnstone.KindNotFound, "", "there is no such object")
}

func (s *Set) open(ctx context.Context, tenant string) (*State, error) {
	st := &State{Tenant: tenant, Dir: s.root, root: s.root, bucket: s.o.Bucket}
	if tenant != auth.OperatorTenant {
		dir, err := statedir.Open(s.root.Path(folder, tenant))
		if err != nil {
			return nil, err
		}
		st.Dir, st.shared = dir, s.all[auth.OperatorTenant]
		if err := public.Share(s.root, dir); err != nil {
			return nil, failed(tenant, err)
		}
	}
	st.Templates = template.NewStore(st.Dir.Path("templates"))
	if err := st.Refresh(ctx); err != nil {
		return nil, err
	}
	o := s.o.Executor
	o.Dir, o.Within = st.Dir.Root, s.root.Root
	if st.shared != nil {
		o.Store, o.Database = storeOf(o.Store, tenant), owners.Database(o.Database, tenant)
	}
	x, err := executor.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	if st.Database = o.Database; st.Database != "" {
		if st.common, err = turns.OpenShared(ctx, st.Database); err != nil {
			return nil, errors.Join(err, x.Close())
		}
	}
	st.Executor, st.Runner, st.Sandboxes = x, x, sandboxes.NewStore(st.Dir.Root)
	if s.o.Runner != nil {
		st.Runner = s.o.Runner(tenant, x)
	}
	st.Sandboxes.Holder = o.Holder
	tickets, err := st.Folder("tickets")
	if err == nil {
		st.Turns, err = turns.Open(tickets, st.Runner, s.o.Turns)
	}
	if err == nil {
		err = x.SweepKeys()
	}
	if err == nil {
		st.Turns.Hide(s.root.Paths())
		st.Turns.Share(s.turns, tenant)
		st.Turns.Ahead(s.o.Warm)
		st.Turns.Private(st.private)
		err = st.openOwners()
	}
	if err == nil {
		err = st.openSessions()
	}
	if err == nil {
		err = st.recoverTurns(s.o.Node, s.o.Retries)
	}
	if err != nil {
		return nil, errors.Join(err, x.Close(), st.common.Close())
	}
	return st, nil
}

// storeOf returns the place of a tenant's objects in the bucket of the operator's: each state
// directory has its own. Tenants' objects are in their state directories if place is empty.
func storeOf(place, tenant string) string {
	if place == "" {
		return ""
	}
	return strings.TrimRight(place, "/") + "/" + folder + "/" + tenant
}

// private returns the folder in memory of what the node keeps of a turn until its client has it, or ""
// if the turn's session is not sealed.
func (s *State) private(ctx context.Context, t turns.Ticket) (string, error) {
	return s.Executor.Memory(ctx, cmp.Or(string(t.SessionID), t.Session), t.ID)
}

// recoverTurns ends or resumes the turns that a former process left. A resumed turn uses what its
// client's key may use now; no token narrows it, because none is there.
func (s *State) recoverTurns(node string, retries int) error {
	limit := func(t turns.Ticket, operator bool) turns.Limit {
		caller := owners.Caller{Key: t.Client, Operator: operator && s.Operator()}
		return func(ctx context.Context) context.Context {
			return s.Owners.Limit(ctx, caller, owners.Write)
		}
	}
	if s.common != nil {
		s.Turns.Common(turns.Common{DB: s.common, Node: node, Limit: limit, Room: s.mayTake})
	}
	s.Turns.Retries(retries)
	return s.Turns.Recover(limit)
}

// openSessions makes the service of the tenant's sessions, and removes what clients of a former
// process sent.
func (s *State) openSessions() error {
	dir, err := s.Folder(receivedFolder)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return failed(s.Tenant, err)
	}
	s.sessions = sessions.New(sessions.Options{Executor: s.Executor, Owners: s.Owners,
		Templates: s.Templates, Dir: dir, Paths: s.root.Paths()})
	return nil
}

// openOwners opens the owners of the tenant's sessions, and forgets those of sessions that are gone.
func (s *State) openOwners() error {
	dir, err := s.Folder(ownersFolder)
	if err != nil {
		return err
	}
	if s.Owners, err = owners.Open(dir); err != nil {
		return err
	}
	if s.common != nil {
		s.Owners.Share(s.common)
	}
	return s.Owners.Sweep(func(id turnstone.SessionID) error {
		_, err := s.Executor.CurrentSession(context.Background(), string(id))
		return err
	})
}

// All returns the tenants, in the order of their names.
func (s *Set) All() []*State {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*State, 0, len(s.all))
	for _, st := range s.all {
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b *State) int { return strings.Compare(a.Tenant, b.Tenant) })
	return all
}

// Drain starts no more turns and opens no more tenants, and waits for the running turns, also those
// that run again in a command such as a replay. The error is that of ctx.
func (s *Set) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	all := s.All()
	errs := make([]error, 2*len(all))
	var wg sync.WaitGroup
	for i, st := range all {
		wg.Go(func() { errs[2*i] = st.Turns.Drain(ctx) })
		wg.Go(func() { errs[2*i+1] = st.sessions.Drain(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Warm returns the machines that wait for the next turns of sessions; nil: none wait.
func (s *Set) Warm() *Warm { return s.o.Warm }

// Close ends the turns of all tenants, and waits for them. Sandboxes continue.
func (s *Set) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	errs := []error{s.o.Warm.Close()} // before the stores that its machines read
	for _, st := range s.All() {
		errs = append(errs, st.close())
	}
	return errors.Join(errs...)
}

// Queue returns the queue of the turns of all tenants.
func (s *Set) Queue() *turns.Queue { return s.turns }

// Root returns the node's state directory.
func (s *Set) Root() string { return s.root.Root }

// Holding returns the tenant that has a sandbox. The error is of kind NotFound if none has.
func (s *Set) Holding(id turnstone.SandboxID) (*State, error) {
	for _, st := range s.All() {
		if st.Sandboxes.Has(id) { // each channel asks, and no state matters here
			return st, nil
		}
	}
	return nil, turnstone.Errorf("sandbox.find", turnstone.KindNotFound,
		"sandbox "+filepath.Base(string(id)), "no such sandbox")
}

// Seal implements node.Sandboxes, for the sandboxes of all tenants.
func (s *Set) Seal(ctx context.Context, id turnstone.SandboxID, seal sandboxes.Seal) (
	sandboxes.ChannelKey, error) {
	st, err := s.Holding(id)
	if err != nil {
		return sandboxes.ChannelKey{}, err
	}
	return st.Sandboxes.Seal(ctx, id, seal)
}

// OpenChannel implements node.Sandboxes, for the sandboxes of all tenants.
func (s *Set) OpenChannel(ctx context.Context, id turnstone.SandboxID) (sandboxes.ChannelStream,
	error) {
	st, err := s.Holding(id)
	if err != nil {
		return nil, err
	}
	return st.Sandboxes.OpenChannel(ctx, id)
}

// Commands registers the commands of a client of the node's channel, which ends with ctx: it is
// node.Options.Commands.
func (s *Set) Commands(ctx context.Context, d *wire.Dispatcher, p node.Peer) error {
	st, err := s.Of(ctx, p.Tenant)
	if err != nil {
		return err
	}
	p.Rights.Guard(d, st.ticket)
	caller := owners.Caller{Key: p.Key, Owner: p.Owner, Tokens: &p.Rights,
		Operator: p.Operator && st.Operator() && p.Rights.Operator()}
	keyed := st.sessions.Register(d, caller)
	serve := st.Turns.For
	if caller.Operator {
		serve = st.Turns.ForOperator
	}
	wire.RegisterTurn(d, serve(p.Key, func(ctx context.Context) context.Context {
		return st.Owners.Limit(keyed(ctx), caller, owners.Write)
	}))
	return nil
}

// ticket returns what a ticket is for. A turn without a session gets an anonymous one, whose ID
// patterns have to match where it is made.
func (s *State) ticket(ctx context.Context, id string) (session, template string) {
	i, err := s.Turns.Get(id)
	if err != nil {
		return "", "" // the command itself tells
	}
	session = i.Session
	if i.SessionID != "" { // the request may have named it by its ID
		if g, err := s.Executor.CurrentSession(ctx, string(i.SessionID)); err == nil {
			session = cmp.Or(g.Name, string(g.ID))
		}
	}
	return session, cmp.Or(i.Template, executor.DefaultImage)
}

func failed(tenant string, err error) error {
	if typed := (*turnstone.Error)(nil); errors.As(err, &typed) {
		return err
	}
	return turnstone.Classify("tenant.open", turnstone.KindUnavailable, "tenant "+tenant, err,
		"free space in the node's state directory")
}

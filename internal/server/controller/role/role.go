// Package role puts a controller together as a part of a server: its database, the key of its
// tokens, its audit log and the bounds of tenants.
package role

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/audit"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/controller"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/controller/quota"
	"turnstone.dev/turnstone/internal/server/election"
	"turnstone.dev/turnstone/internal/server/fair"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/statedir"
)

// Options are the parts of a Role.
type Options struct {
	Config   *config.Config
	Dir      *statedir.Dir
	Verifier controller.Verifier
	// Nodes returns a client of the node at an address.
	Nodes func(address string, o ...connect.ClientOption) connectv1.NodeServiceClient
	Log   *slog.Logger
	Watch records.Watch // is told of writes to the database; nil: nobody is
	// Around are interceptors of all calls, the first one outermost.
	Around []connect.Interceptor
}

// A Role is the controller of a process: one that leads, or one that waits until it does. Its
// methods are safe for concurrent use.
type Role struct {
	o        Options
	auditor  guard.Auditor
	log      *audit.Log
	close    []func() error // in reverse order
	standby  standby
	answers  atomic.Pointer[reign] // nil: another controller leads, or none does
	election sync.WaitGroup
}

// A reign is a controller that leads.
type reign struct {
	*controller.Controller
	network http.Handler // Peers for callers of the network
	store   *records.DB
	term    *election.Term // nil: the database is a file, which has one controller
}

// valid reports whether the controller still leads.
func (g *reign) valid() bool { return g != nil && (g.term == nil || g.term.Valid()) }

// Open opens the state of a controller, and starts it, or its wait for the lease of a database in
// PostgreSQL. Close it.
func Open(ctx context.Context, o Options) (*Role, error) {
	r := &Role{o: o}
	if err := r.open(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Role) open(ctx context.Context) error {
	c := r.o.Config
	shared := records.IsURL(c.Records.Database)
	if err := r.o.Dir.NoteRecords(shared); err != nil { // for backups
		return err
	}
	a := audit.Options{Size: c.Audit.Size, Sync: c.Audit.Sync, Log: r.o.Log}
	if shared {
		a.Controller = c.Machine.Name
	}
	log, err := audit.Open(c.Audit.Folder, a)
	if err != nil {
		return err
	}
	r.close = append(r.close, log.Close)
	r.auditor, r.log = guard.Auditor{Log: log}, log
	r.standby.init()
	if shared {
		return r.elect(ctx)
	}
	store, err := records.Open(ctx, c.Records.Database, r.records())
	if err != nil {
		return err
	}
	r.close = append(r.close, store.Close)
	issuer, err := r.issuer(ctx)
	if err != nil {
		return err
	}
	g := &reign{store: store}
	if err := r.begin(ctx, g, issuer); err != nil {
		return err
	}
	r.close = append(r.close, g.Close)
	return nil
}

func (r *Role) records() records.Options {
	c := &r.o.Config.Records
	return records.Options{Keep: c.Keep, Watch: r.o.Watch, Passwords: c.Passwords}
}

// issuer opens the key of tokens.
func (r *Role) issuer(ctx context.Context) (*auth.Issuer, error) {
	return auth.OpenIssuer(ctx, r.o.Config.Name, r.o.Config.Tokens.Key, auth.SystemClock())
}

// begin makes the controller of a reign, which answers from now on.
func (r *Role) begin(ctx context.Context, g *reign, issuer *auth.Issuer) error {
	o, c := &r.o, r.o.Config
	publisher, err := auth.NewPublisher(ctx, issuer, controller.Register(g.store))
	if err != nil {
		return err
	}
	g.Controller, err = controller.New(ctx, controller.Options{Name: c.Name, Records: g.store,
		Issuer: issuer, Publisher: publisher, Verifier: o.Verifier, Nodes: o.Nodes, Log: o.Log,
		Longest: c.Tokens.Longest, Audit: r.auditor, Around: o.Around,
		Waiting: fair.Limits{Each: c.Limits.Waiting, All: 10 * c.Limits.Waiting, Wait: c.Limits.Wait},
		Quota: func(tenant string) quota.Limits {
			q := c.QuotaOf(tenant)
			return quota.Limits{Sandboxes: q.Sandboxes, CPUs: q.CPUs, Memory: q.Memory, Disk: q.Disk,
				Stored: q.Stored, Sent: q.BytesOut, Turns: q.Turns}
		},
		Pools: poolsOf(c), PoolBound: func(tenant string) int { return c.QuotaOf(tenant).Pool },
		Version: turnstone.Version, Shared: c.Machine.Database != "",
		// Verifiers refuse tokens when they heard nothing for the time of the setting, which other
		// processes may have set to less.
		Times: controller.Times{Beat: config.LeastRevocations / 4, Forget: c.Records.Forget}})
	if err != nil {
		return err
	}
	g.network = guard.FromNetwork(g.Peers())
	r.answers.Store(g)
	return nil
}

// poolsOf returns the pools of all nodes together.
func poolsOf(c *config.Config) (all []placing.Pool) {
	for _, p := range c.PoolsAt(config.AtFleet) {
		all = append(all, placing.Pool{Tenant: p.Tenant, Template: cmp.Or(p.Template, "base"),
			Machine: turnstone.Machine{CPUs: p.CPUs, Memory: p.Memory, Disk: p.Disk},
			Min:     p.Min, Max: p.Max, Cover: p.Cover, Idle: p.Idle})
	}
	return all
}

// Refused notes a request whose token a gateway of this process has refused.
func (r *Role) Refused(q *http.Request, err error) { r.auditor.Refused(q, err) }

// Callers returns the handler of control calls: see controller.Controller.
func (r *Role) Callers() http.Handler {
	return r.handler(func(g *reign) http.Handler { return g.Callers() })
}

// Peers returns the handler of other roles.
func (r *Role) Peers() http.Handler {
	return r.handler(func(g *reign) http.Handler { return g.Peers() })
}

// PeersFromNetwork is Peers for callers of the network, who prove their role by a certificate.
func (r *Role) PeersFromNetwork() http.Handler {
	return r.handler(func(g *reign) http.Handler { return g.network })
}

// handler returns a handler of the controller, while it leads.
func (r *Role) handler(of func(*reign) http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if g := r.answers.Load(); g.valid() {
			of(g).ServeHTTP(w, q)
			return
		}
		r.standby.ServeHTTP(w, q)
	})
}

// Fence returns the number of the term in which this controller leads, and false if it does not.
func (r *Role) Fence() (int64, bool) {
	g := r.answers.Load()
	if !g.valid() {
		return 0, false
	}
	if g.term == nil {
		return 0, true
	}
	return g.term.Fence, true
}

// Ready returns an error of kind Unavailable while another controller leads.
func (r *Role) Ready(context.Context) error {
	if _, leads := r.Fence(); leads {
		return nil
	}
	return r.standby.error(true) // for the log
}

// Measure emits the numbers of the controller and its audit log: see telemetry.Measurer.
func (r *Role) Measure(emit func(name string, value float64, labels ...string)) {
	leads := 0.0
	if g := r.answers.Load(); g.valid() {
		leads = 1
		g.Measure(emit)
	}
	emit("turnstone_controller_leads", leads)
	emit("turnstone_audit_failures_total", float64(r.log.Failures()))
}

// Close ends the controller, and closes its state.
func (r *Role) Close() error {
	var errs []error
	for i := len(r.close) - 1; i >= 0; i-- {
		errs = append(errs, r.close[i]())
	}
	r.close = nil
	return errors.Join(errs...)
}

package controller

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api/serve"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/guide"
	"turnstone.dev/turnstone/internal/server/controller/inflight"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/controller/quota"
	"turnstone.dev/turnstone/internal/server/controller/usage"
	"turnstone.dev/turnstone/internal/server/fair"
	"turnstone.dev/turnstone/internal/server/records"
)

// A Verifier verifies tokens, and verifies again what a token opened for a long time: see
// auth.TokenVerifier.
type Verifier interface {
	auth.Verifier
	Still(p auth.Principal) error
}

// Options are the parts of a Controller. The first six are required.
type Options struct {
	Name      string // the server's: the issuer and the audience of its own tokens
	Records   records.Store
	Issuer    *auth.Issuer
	Publisher *auth.Publisher
	// Verifier verifies the tokens of calls whose context has no principal. One that is an
	// auth.Follower follows the Publisher from New until Close.
	Verifier Verifier
	// Nodes returns a client of the node that listens at an address, with further options.
	Nodes func(address string, o ...connect.ClientOption) connectv1.NodeServiceClient

	// Template is the template of a request that names none, for authorisation. Default: "base".
	Template string
	// Longest is the longest life of a token that CreateToken makes. Default: auth.MaxTTL.
	Longest time.Duration
	Log     *slog.Logger // faults of the server; nil: none
	// Around are interceptors of all calls, the first one outermost.
	Around  []connect.Interceptor
	Times   Times
	Watches int // open watches of callers. Default: 1,000
	// Waiting bounds the creations that wait for room, and Quota what a tenant may have; nil: nothing.
	Waiting fair.Limits
	Quota   func(tenant string) quota.Limits
	// Pools wait on all nodes together, of each tenant together as many as PoolBound says; nil: any.
	Pools     []placing.Pool
	PoolBound func(tenant string) int
	// Version is that of this program: nodes of another get only what fits nowhere else; empty: the same.
	Version string
	// Shared: each node has each session, in a database of all.
	Shared bool
	// Audit notes calls and channels. Its zero value notes nothing.
	Audit guard.Auditor
}

// Times are the controller's intervals. Zero values select the defaults.
type Times struct {
	Lost    time.Duration // from a node's last registration to its loss: 20 s
	Forget  time.Duration // from a node's last registration until it is forgotten: never
	Silence time.Duration // from a node's last event to a new connection: 45 s
	Gone    time.Duration // until a node's word that a machine has vanished is believed: 5 s
	Alive   time.Duration // between events of a watch: 15 s
	Still   time.Duration // between two looks whether a watch's token is still valid: 1 s
	Beat    time.Duration // between confirmations of the bulletin: 5 s
	Prune   time.Duration // between removals of old records, and records of usage: 1 min
	Call    time.Duration // of a call to a node: 30 s
	Create  time.Duration // of a call to a node that makes a machine: 5 min
	// Abandon is how long a creation that failed for now waits for its repetition: 5 min.
	Abandon time.Duration
}

func (t *Times) setDefaults() {
	for _, d := range []struct {
		to    *time.Duration
		value time.Duration
	}{{&t.Lost, 20 * time.Second}, {&t.Silence, 45 * time.Second}, {&t.Gone, 5 * time.Second},
		{&t.Alive, 15 * time.Second},
		{&t.Still, time.Second}, {&t.Beat, 5 * time.Second}, {&t.Prune, time.Minute},
		{&t.Call, 30 * time.Second}, {&t.Create, 5 * time.Minute},
		{&t.Abandon, 5 * time.Minute}} {
		if *d.to == 0 {
			*d.to = d.value
		}
	}
}

// A Controller is safe for concurrent use.
type Controller struct {
	o       Options
	log     *slog.Logger
	callers http.Handler
	peers   http.Handler

	ctx   context.Context // of all background work
	stop  context.CancelFunc
	tasks sync.WaitGroup
	leave func() // ends that the verifier follows the publisher

	// commit is held while a record is changed and the change is noted, so that notes about an object
	// have the order of its changes. Changes of different objects share a commit of the records.
	commit fair.Mutex
	// gate lets one creation at a time choose a node and count against its quota. What is part of a
	// session that is new is also recorded there: two objects of it must not get two nodes. The others
	// are recorded outside, many together. Creations without a node wait there.
	gate   *fair.Gate
	quotas *quota.Book

	nodes    registry
	waiting  atomic.Int64 // reports in queues
	ledger   usage.Ledger
	hub      hub
	calls    inflight.Locks
	unmade   inflight.Unmade
	pendings inflight.Pendings
	losses   placing.Losses
	guide    guide.Guide
}

// New returns a controller, which resumes with the records that an earlier one left. Close it. The
// error is of kind Invalid if a required option is missing.
func New(ctx context.Context, o Options) (*Controller, error) {
	if o.Name == "" || o.Records == nil || o.Issuer == nil || o.Publisher == nil ||
		o.Verifier == nil || o.Nodes == nil {
		return nil, turnstone.Errorf("controller.new", turnstone.KindInvalid, "the controller",
			"an option is missing")
	}
	o.Times.setDefaults()
	if o.Template == "" {
		o.Template = "base"
	}
	if o.Longest == 0 {
		o.Longest = auth.MaxTTL
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Watches == 0 {
		o.Watches = 1000
	}
	c := &Controller{o: o, log: o.Log, leave: func() {}, gate: fair.NewGate(o.Waiting),
		quotas: quota.New(o.Quota)}
	c.nodes.all = map[string]*node{}
	c.nodes.fleet = placing.New(placing.Options{Lost: o.Times.Lost, Forget: o.Times.Forget, Pools: o.Pools,
		Bound: o.PoolBound, Version: o.Version})
	c.losses.Records, c.losses.Shared, c.losses.Reconcile = o.Records, o.Shared, c.reconcile
	c.hub.max = o.Watches
	c.guide = guide.Guide{Shared: o.Shared, Place: c.nodes.place, At: c.at, Change: c.change,
		Pend: c.pendings.Add}
	if err := c.restore(ctx); err != nil {
		return nil, err
	}
	if f, ok := o.Verifier.(auth.Follower); ok {
		leave, err := o.Publisher.Follow(f)
		if err != nil {
			return nil, err
		}
		c.leave = leave
	}
	c.ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	services := serve.Services{Sandboxes: sandboxService{c}, Turns: turnService{c},
		Sessions: sessionService{c}, Templates: templateService{c}, Server: serverService{c},
		Pools: &placing.PoolService{Lock: &c.nodes.mu, Fleet: c.nodes.fleet, Sized: c.nodes.sizedAs, Template: o.Template}}
	c.callers = guard.Handler(o.Verifier, services.Handler(c.report,
		c.around(o.Audit, guard.Refusals{})...), o.Audit,
		fair.NewShares(runtime.GOMAXPROCS(0), o.Waiting))
	c.peers = c.peerHandler()
	if err := c.resume(ctx); err != nil {
		return nil, turnstone.NewError("controller.new", turnstone.KindOf(err), "", err)
	}
	c.every(o.Times.Beat, "the bulletin cannot be confirmed", o.Publisher.Beat)
	c.every(o.Times.Prune, "old records cannot be removed", c.sweep)
	c.every(o.Times.Lost/8, "a lost node cannot be recorded", c.loseNodes)
	return c, nil
}

// around returns the interceptors of calls, the first one outermost.
func (c *Controller) around(inner ...connect.Interceptor) []connect.Interceptor {
	return slices.Concat(c.o.Around, inner)
}

// committing runs f for a tenant, or for a node if it is empty, with the lock of changes of these
// objects; without objects, of all. The change of a session is one of all objects: they may be in it.
func (c *Controller) committing(ctx context.Context, tenant string, f func() error,
	of ...records.Object) (err error) {
	names := make([]string, len(of))
	for i, o := range of {
		if names[i] = lockOf(o); o.Kind == records.Session {
			names = nil
			break
		}
	}
	fair.Rest(ctx, func() {
		if len(names) == 0 {
			c.commit.Lock(tenant)
			defer c.commit.Unlock()
		} else {
			defer c.commit.LockNames(tenant, names...)()
		}
		err = f()
	})
	return err
}

// Callers returns the handler of what callers reach, for a gateway and for the operator's socket.
// The caller is the principal of the context (auth.NewContext), else that of the token in the
// header Authorization.
func (c *Controller) Callers() http.Handler { return c.callers }

// Peers returns the handler of ControllerService, which believes what it is told: only other roles
// of the server may reach it.
func (c *Controller) Peers() http.Handler { return c.peers }

// Close ends watches and background work, and waits for it. Nodes continue their work.
func (c *Controller) Close() error {
	c.leave()
	c.stop()
	c.nodes.close()
	c.tasks.Wait()
	ctx, end := context.WithTimeout(context.Background(), 10*time.Second)
	defer end()
	return c.flushUsage(ctx)
}

// every runs f at an interval, until Close.
func (c *Controller) every(interval time.Duration, fault string, f func(context.Context) error) {
	c.tasks.Go(func() {
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-c.ctx.Done():
				return
			case <-t.C:
			}
			if err := f(c.ctx); err != nil && c.ctx.Err() == nil {
				c.log.Error(fault, "error", err)
			}
		}
	})
}

// report logs a fault whose text no caller gets.
func (c *Controller) report(ctx context.Context, procedure string, err error) {
	c.log.ErrorContext(ctx, "a call failed", "procedure", procedure, "error", err)
}

// sweep is what is done each minute.
func (c *Controller) sweep(ctx context.Context) error {
	c.giveUp(ctx)
	if err := c.flushUsage(ctx); err != nil {
		c.log.Error("usage cannot be recorded", "error", err)
	}
	return c.o.Records.Prune(ctx)
}

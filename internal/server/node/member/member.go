// Package member puts a node together as a part of a server: its tenants, its channels, its service
// for controllers, and its registration.
package member

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/certificate"
	"turnstone.dev/turnstone/internal/server/node/control"
	"turnstone.dev/turnstone/internal/server/node/plain"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/server/peers"
	"turnstone.dev/turnstone/internal/statedir"
)

// Options are the parts of a Member.
type Options struct {
	Dir      *statedir.Dir
	Executor executor.Options // with a Holder
	Settings config.Machine
	Limits   config.Limits
	Pools    []config.Pool
	Address  string // where controllers and gateways reach the node
	// TrustOperator is set if the controller is in the same process: see control.Options.
	TrustOperator bool
	Log           *slog.Logger
	// Watch measures what the node does; nil: nobody does.
	Watch Watch
}

// A Watch measures what a node does: see telemetry.Telemetry.
type Watch interface {
	node.Watch
	// Calls returns an interceptor of the calls of a role.
	Calls(role string) connect.Interceptor
	// Turns returns a runner of turns around that of a tenant.
	Turns(tenant string, x tenants.Runner) tenants.Runner
}

// A Member is a node. Its methods are safe for concurrent use.
type Member struct {
	o           Options
	node        *node.Node
	certificate *certificate.File
	control     *control.Service
	tenants     *tenants.Set
	bucket      *node.Bucket
	plain       *plain.Service               // nil: Plain was not called
	register    atomic.Pointer[registration] // nil: Register was not called
}

// Open opens the state of a node. Close it.
func Open(ctx context.Context, o Options) (*Member, error) {
	signer, err := (key.Ring{Dir: o.Dir}).NodeKey(ctx)
	if err != nil {
		return nil, err
	}
	m := &Member{o: o}
	m.certificate, err = certificate.Open(o.Settings.Certificate, o.Settings.Name, signer.Public, o.Log)
	if err != nil {
		return nil, err
	}
	if m.bucket, err = node.WatchBucket(o.Executor.Store, o.Log); err != nil {
		return nil, err
	}
	set := tenants.Options{Executor: o.Executor, Turns: o.Settings.Turns,
		Node: o.Settings.Name, Retries: o.Settings.Retries,
		Wait: o.Limits.Wait, Waiting: o.Limits.Waiting, Warm: warmTurns(o), Bucket: m.bucket}
	if o.Watch != nil {
		set.Runner = o.Watch.Turns
	}
	m.tenants, err = tenants.Open(ctx, set)
	if err != nil {
		return nil, err
	}
	m.node = node.New(node.Options{Name: o.Settings.Name, Key: signer,
		Certificate: m.certificate.Text, Commands: m.tenants.Commands, Sandboxes: m.tenants,
		Paths: o.Dir.Paths(), Watch: o.Watch})
	var substrates []string
	if st, known := m.tenants.Known(auth.OperatorTenant); known == nil {
		substrates = st.Executor.Substrates(ctx)
	}
	m.control, err = control.New(ctx, control.Options{Node: m.node, Tenants: m.tenants,
		Substrates: substrates, Version: turnstone.Version, Expose: o.Settings.Expose,
		TrustOperator: o.TrustOperator, TrustController: o.Settings.TrustController == "on",
		Warm: warmOf(o)})
	if err != nil {
		return nil, errors.Join(err, m.node.Close(), m.tenants.Close())
	}
	return m, nil
}

// Warm returns the state of the pool of sandboxes that wait for a claim.
func (m *Member) Warm() []control.WarmStats { return m.control.Warm() }

// warmOf returns the settings of the sandboxes that wait for a claim.
func warmOf(o Options) control.Warm {
	w := control.Warm{Memory: o.Settings.PoolMemory, Makers: o.Settings.PoolMakers,
		Holder: o.Executor.Holder.Path, Log: o.Log}
	for _, p := range o.Pools {
		w.Targets = append(w.Targets, control.WarmTarget{Tenant: p.Tenant, Template: p.Template,
			Machine: turnstone.Machine{CPUs: p.CPUs, Memory: p.Memory, Disk: p.Disk},
			Min:     p.Min, Max: p.Max, Idle: p.Idle})
	}
	return w
}

// warmTurns returns the machines that wait for the next turns of sessions.
func warmTurns(o Options) *tenants.Warm {
	return tenants.NewWarm(tenants.WarmOptions{Turns: o.Settings.WarmTurns,
		Memory: o.Settings.WarmMemory, Idle: o.Settings.WarmIdle, Failed: func(tenant string, err error) {
			o.Log.Warn("no machine waits for the next turn", "tenant", tenant, "error", err)
		}})
}

// StoreAway returns why the bucket of the node's sessions cannot be used; nil: it can, or there is none.
func (m *Member) StoreAway() error { return m.bucket.Away() }

// Busy reports whether the node has a sandbox or a turn, or makes something in the background.
// Machines that wait for turns do not count.
func (m *Member) Busy() bool {
	busy := m.control.Busy() || m.tenants.Queue().Waiting() > 0
	for _, st := range m.tenants.All() {
		busy = busy || st.Turns.Count() > 0
	}
	return busy
}

// Drain starts no more turns, and waits for the running ones, and for commands in the clear. The controller knows before
// that the node ends, if it answers: a node without work would end so soon that it got some after its end. The error is
// that of ctx. It is called once.
func (m *Member) Drain(ctx context.Context) error {
	m.control.Drain()
	if r := m.register.Load(); r != nil {
		r.end(ctx)
	}
	err := m.tenants.Drain(ctx)
	if m.plain != nil {
		err = errors.Join(err, m.plain.Drain(ctx))
	}
	return err
}

// Reload reads the node's certificate again.
func (m *Member) Reload() error { return m.certificate.Reload() }

// Close ends channels and running turns. Sandboxes continue.
func (m *Member) Close() error {
	return errors.Join(m.control.Close(), m.node.Close(), m.tenants.Close())
}

// Handle adds what other roles reach to mux.
func (m *Member) Handle(mux *http.ServeMux) {
	var around []connect.Interceptor
	if m.o.Watch != nil {
		around = append(around, m.o.Watch.Calls(config.Node))
	}
	path, h := m.control.Handler(m.report, around...)
	mux.Handle(path, peers.Only(h, config.Controller))
	// a controller without a gateway connects its operator's channels itself
	channels := peers.Only(m.node.Handler(), config.Gateway, config.Controller)
	mux.Handle(node.ChannelPath, channels)
	mux.Handle(node.SandboxChannelPath, channels)
}

// Measure emits the numbers of the node: see telemetry.Measurer.
func (m *Member) Measure(emit func(name string, value float64, labels ...string)) {
	m.control.Measure(emit)
	m.measureTurns(emit)
	pools := m.Warm()
	if len(pools) == 0 {
		return
	}
	var all control.WarmStats
	for _, p := range pools {
		all.Ready += p.Ready
		all.Making += p.Making
		all.Waiting += p.Waiting
		all.Claimed += p.Claimed
		all.Missed += p.Missed
		all.Refused += p.Refused
		all.Expired += p.Expired
		all.Died += p.Died
		all.Drained += p.Drained
		all.Evicted += p.Evicted
	}
	emit("turnstone_pool_sandboxes", float64(all.Ready), "ready")
	emit("turnstone_pool_sandboxes", float64(all.Making), "filling")
	emit("turnstone_pool_waiting", float64(all.Waiting))
	emit("turnstone_pool_claims_total", float64(all.Claimed), "warm")
	emit("turnstone_pool_claims_total", float64(all.Missed), "cold")
	emit("turnstone_pool_claims_total", float64(all.Refused), "refused")
	emit("turnstone_pool_discarded_total", float64(all.Expired), "idle")
	emit("turnstone_pool_discarded_total", float64(all.Died), "died")
	emit("turnstone_pool_discarded_total", float64(all.Drained), "changed")
	emit("turnstone_pool_discarded_total", float64(all.Evicted), "memory")
}

// measureTurns emits the numbers of the machines that wait for turns.
func (m *Member) measureTurns(emit func(name string, value float64, labels ...string)) {
	if m.tenants.Warm() == nil {
		return
	}
	w := m.tenants.Warm().Stats()
	emit("turnstone_warm_turns", float64(w.Ready), "ready")
	emit("turnstone_warm_turns", float64(w.Making), "filling")
	emit("turnstone_warm_turn_claims_total", float64(w.Hits-w.Lost), "warm")
	emit("turnstone_warm_turn_claims_total", float64(w.Misses), "cold")
	emit("turnstone_warm_turn_claims_total", float64(w.Lost), "died")
	emit("turnstone_warm_turns_discarded_total", float64(w.Idle), "idle")
	emit("turnstone_warm_turns_discarded_total", float64(w.Died), "died")
	emit("turnstone_warm_turns_discarded_total", float64(w.Changed), "changed")
	emit("turnstone_warm_turns_discarded_total", float64(w.Failed), "failed")
	emit("turnstone_warm_turns_discarded_total", float64(w.Evicted), "memory")
}

// Plain serves callers without the channel, as far as allow permits (config.Config.Plaintext). The
// caller is the principal of a request's context. It is called once, before Drain.
func (m *Member) Plain(allow string) http.Handler {
	m.plain = plain.New(plain.Options{Allow: allow, Tenant: plain.Of(m.tenants), Paths: m.node.Paths()})
	return m.plain.Handler()
}

// Near returns the node and its tenants, for doors in this process.
func (m *Member) Near() (*node.Node, *tenants.Set) { return m.node, m.tenants }

// report logs a fault whose text no caller gets.
func (m *Member) report(ctx context.Context, procedure string, err error) {
	m.o.Log.ErrorContext(ctx, "a call failed", "procedure", procedure, "error", err)
}

// Register tells the controller again and again that the node is there, until ctx ends. It begins when
// the node knows whether it can use its bucket, so that it is not offered turns before.
func (m *Member) Register(ctx context.Context, c connectv1.ControllerServiceClient) {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { m.bucket.Run(ctx) })
	select {
	case <-m.bucket.Known():
	case <-ctx.Done():
		return
	}
	m.control.Refresh() // or a controller would follow what was true before
	r := newRegistration(func(ctx context.Context) error {
		answer, err := c.RegisterNode(ctx, connect.NewRequest(&v1.RegisterNodeRequest{
			Node: m.control.Describe(), Address: m.o.Address}))
		if err != nil {
			return api.FromConnect(err)
		}
		m.control.Share(answer.Msg.Pools)
		return nil
	}, m.o.Log, "node", m.node.Name(), "address", m.o.Address, "key", m.node.PublicKey().ID())
	m.register.Store(r)
	r.run(ctx)
}

// Package role puts a controller together as a part of a server: its database, the key of its
// tokens, its audit log and the bounds of tenants.
package role

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"

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

// A Role is the controller of a process. Its methods are safe for concurrent use.
type Role struct {
	*controller.Controller
	auditor guard.Auditor
	log     *audit.Log
	close   []func() error // in reverse order
}

// Open opens the state of a controller, and starts it. Close it.
func Open(ctx context.Context, o Options) (*Role, error) {
	r := &Role{}
	if err := r.open(ctx, o); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Role) open(ctx context.Context, o Options) error {
	c := o.Config
	store, err := records.Open(ctx, c.Records.Database, records.Options{Keep: c.Records.Keep,
		Watch: o.Watch})
	if err != nil {
		return err
	}
	r.close = append(r.close, store.Close)
	log, err := audit.Open(c.Audit.Folder, audit.Options{Size: c.Audit.Size, Sync: c.Audit.Sync,
		Log: o.Log})
	if err != nil {
		return err
	}
	r.close = append(r.close, log.Close)
	r.auditor, r.log = guard.Auditor{Log: log}, log
	issuer, err := auth.OpenIssuer(ctx, c.Name, o.Dir.Path("keys", "token"), auth.SystemClock())
	if err != nil {
		return err
	}
	publisher, err := auth.NewPublisher(ctx, issuer, controller.Register(store))
	if err != nil {
		return err
	}
	r.Controller, err = controller.New(ctx, controller.Options{Name: c.Name, Records: store,
		Issuer: issuer, Publisher: publisher, Verifier: o.Verifier, Nodes: o.Nodes, Log: o.Log,
		Longest: c.Tokens.Longest, Audit: r.auditor, Around: o.Around,
		Waiting: fair.Limits{Each: c.Limits.Waiting, All: 10 * c.Limits.Waiting, Wait: c.Limits.Wait},
		Quota: func(tenant string) quota.Limits {
			q := c.QuotaOf(tenant)
			return quota.Limits{Sandboxes: q.Sandboxes, CPUs: q.CPUs, Memory: q.Memory, Disk: q.Disk,
				Stored: q.Stored, Sent: q.BytesOut, Turns: q.Turns}
		},
		Pools: poolsOf(c), PoolBound: func(tenant string) int { return c.QuotaOf(tenant).Pool },
		Version: turnstone.Version,
		// Verifiers refuse tokens when they heard nothing for the time of the setting, which other
		// processes may have set to less.
		Times: controller.Times{Beat: config.LeastRevocations / 4}})
	if err != nil {
		return err
	}
	r.close = append(r.close, r.Controller.Close)
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

// PeersFromNetwork is Peers for callers of the network, who prove their role by a certificate.
func (r *Role) PeersFromNetwork() http.Handler { return controller.FromNetwork(r.Peers()) }

// Measure emits the numbers of the controller and its audit log: see telemetry.Measurer.
func (r *Role) Measure(emit func(name string, value float64, labels ...string)) {
	r.Controller.Measure(emit)
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

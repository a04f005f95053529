package control

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/server/node/warm"
	"turnstone.dev/turnstone/sandboxes"
)

// A creation is the work of one call that creates a sandbox.
type creation struct {
	began   time.Time
	client  *node.Client // that the sandbox's channel admits; nil: it is told later
	channel *v1.Channel  // with a statement for client; nil: not yet
	phases  []*v1.Phase  // in their order
}

// add notes a phase that began at a time and has ended now.
func (c *creation) add(phase string, began time.Time) { c.took(phase, began, time.Since(began)) }

func (c *creation) took(phase string, began time.Time, d time.Duration) {
	c.phases = append(c.phases, &v1.Phase{Name: phase, Took: durationpb.New(d),
		After: durationpb.New(max(0, began.Sub(c.began)))})
}

// LogValue implements slog.LogValuer.
func (c *creation) LogValue() slog.Value {
	var all []slog.Attr
	for _, one := range c.phases {
		all = append(all, slog.Duration(one.Name, one.Took.AsDuration()))
	}
	return slog.GroupValue(all...)
}

// claim makes a sandbox that waited the one that spec describes. Nothing on the way waits for a disk:
// the sandbox ends with the power, and until then the files are there for every process.
func (s *Service) claim(ctx context.Context, st *tenants.State, rec *kept.Sandbox,
	taken *warm.Taken, spec sandboxes.Spec, made *creation) (sandboxes.Info, error) {
	began := time.Now()
	made.took("queue", began.Add(-taken.Check-taken.Queued), taken.Queued)
	made.took("check", began.Add(-taken.Check), taken.Check)
	dir, err := st.Folder(sandboxFolder)
	if err == nil {
		err = rec.Place(dir)
	}
	made.add("record", began)
	if err != nil {
		return sandboxes.Info{}, errors.Join(err, taken.Close())
	}
	began = time.Now()
	key, known := taken.ChannelKey()
	var signed *attest.Signed
	var seal *sandboxes.Seal
	if known && made.client != nil {
		var one sandboxes.Seal
		if signed, one, err = s.o.Node.SignSandbox(ctx, rec.ID, key, *made.client); err != nil {
			return sandboxes.Info{}, errors.Join(err, taken.Close())
		}
		seal = &one
		made.add("seal", began)
	}
	began = time.Now()
	c, err := taken.Claim(ctx, spec, seal)
	took := time.Since(began) - c.Configure
	made.took("take", began, took)
	made.took("configure", began.Add(took), c.Configure)
	if err != nil {
		return c.Info, err
	}
	if signed != nil {
		s.o.Node.Sealed(rec.ID, key)
		made.channel = s.channel(signed, node.SandboxChannelPath, "{id}", string(rec.ID))
	}
	s.later(func() {
		if err := kept.Persist(dir, rec.ID); err != nil {
			slog.Warn("what is kept of a sandbox is not durable", "sandbox", rec.ID, "err", err)
		}
	})
	return c.Info, nil
}

// later runs f in the background, unless the service is closed: f is not needed then.
func (s *Service) later(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.wg.Go(f)
	}
}

// warmMessage returns the state of the sandboxes of one kind that wait.
func warmMessage(w warm.Stats) *v1.WarmSandboxes {
	shape := w.Key.Shape
	return &v1.WarmSandboxes{Tenant: w.Key.Tenant, Template: w.Key.Source,
		Machine: &v1.Machine{Cpus: uint32(shape.CPUs), Memory: uint64(shape.Memory),
			Disk: uint64(shape.Disk)},
		Min: uint32(w.Target.Min), Max: uint32(w.Target.Max), Ready: uint32(w.Ready),
		Making: uint32(w.Making), Queued: uint32(w.Waiting), Claimed: uint64(w.Claimed),
		Made: uint64(w.Made), Failed: uint64(w.Failed), Died: uint64(w.Died),
		Evicted: uint64(w.Evicted)}
}

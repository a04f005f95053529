// Package warm keeps sandboxes of a node that are ready before a client asks for them: restored,
// reseeded, configured and on their network. A claim makes one of them the sandbox of a client,
// which is used once.
package warm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/pool"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/sandboxes"
)

// A Target says how many sandboxes of a tenant wait.
type Target struct {
	Tenant   string            // empty: the operator
	Template string            // empty: the default
	Machine  turnstone.Machine // zero fields: the template's
	Min, Max int
	Idle     time.Duration // how long a sandbox beyond Min waits
	Build    bool          // a template that is not built
}

// Options are the parts and bounds of a Service.
type Options struct {
	Tenants *tenants.Set
	Targets []Target
	Memory  turnstone.Bytes // that all sandboxes that wait may have; 0: no bound
	Makers  int             // sandboxes that are made at the same time; 0: 2
	// Holder is the program that keeps sandboxes: when it changes, so do the sandboxes.
	Holder string
	// Room reports whether the node has room for a machine, beside the memory of those that wait.
	Room func(m turnstone.Machine, waiting turnstone.Bytes) bool
	// Build begins to build a template of a target that says so.
	Build func(ctx context.Context, st *tenants.State, template string) error
	Log   *slog.Logger
}

const (
	// lookEvery is the time between two looks at what sandboxes are made from.
	lookEvery = 3 * time.Second
	// fresh is how long an answer of a sandbox counts as a sign of life.
	fresh = 10 * time.Second
	// usualIdle is how long a sandbox beyond Min waits whose target does not say.
	usualIdle = 10 * time.Minute
	// buildEvery is the time between two attempts to build a template.
	buildEvery = time.Minute
	// calm is how long the next sandbox is not made after a claim, if enough wait: the claim's first
	// command runs then.
	calm = 200 * time.Millisecond
)

// A Service keeps the sandboxes. Its methods are safe for concurrent use; those of nil keep none.
type Service struct {
	o    Options
	pool *pool.Pool[*machine]
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	specs  map[pool.Key]sandboxes.Spec // of the targets that are there
	shares []Target                    // of the server's pools
	built  map[string]time.Time        // when a build was begun, by the target's label
	wake   chan struct{}               // has one element when shares have changed
}

// A machine is a sandbox that waits.
type machine struct{ *sandboxes.Spare }

// Check implements pool.Machine.
func (m *machine) Check(ctx context.Context) error { return m.Ping(ctx, fresh) }

// New begins to make sandboxes. Close it before the tenants.
func New(o Options) *Service {
	o.Log = cmp.Or(o.Log, slog.Default())
	s := &Service{o: o, specs: make(map[pool.Key]sandboxes.Spec), built: make(map[string]time.Time),
		wake: make(chan struct{}, 1)}
	s.pool = pool.New(pool.Options[*machine]{Make: s.make, Memory: o.Memory, Makers: o.Makers,
		Calm: calm, Event: s.event, Room: func(k pool.Key, waiting turnstone.Bytes) bool {
			return o.Room == nil || o.Room(turnstone.Machine{CPUs: k.Shape.CPUs,
				Memory: k.Shape.Memory, Disk: k.Shape.Disk}, waiting)
		}})
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.wg.Go(func() { s.follow(ctx) })
	return s
}

// Close closes the sandboxes that wait, and waits for their ends. Claims fail from now on.
func (s *Service) Close() error {
	if s == nil {
		return nil
	}
	s.stop()
	s.wg.Wait()
	return s.pool.Close()
}

// make makes a sandbox for the pool.
func (s *Service) make(ctx context.Context, k pool.Key, _ string) (*machine, error) {
	s.mu.Lock()
	spec, known := s.specs[k]
	s.mu.Unlock()
	if !known {
		return nil, turnstone.Errorf("warm.make", turnstone.KindUnavailable, k.Source,
			"is no longer kept warm")
	}
	st, err := s.o.Tenants.Known(k.Tenant)
	if err != nil {
		return nil, err
	}
	if err := st.Room(); err != nil {
		return nil, err
	}
	spare, err := st.Sandboxes.Prepare(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	return &machine{spare}, nil
}

// event logs what an operator should know.
func (s *Service) event(e pool.Event) {
	s.o.Log.Warn("warm sandbox: "+string(e.Kind), "tenant", e.Key.Tenant, "template", e.Key.Source,
		"error", e.Err, "hint", turnstone.HintOf(e.Err))
}

// Share sets the targets that a controller has given to the node, beside those of its options. What it
// no longer names is closed.
func (s *Service) Share(all []Target) {
	s.mu.Lock()
	same := slices.Equal(s.shares, all)
	s.shares = all
	s.mu.Unlock()
	if same {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// targets returns the targets of the options and the shares. Of a kind that is in both the greater
// numbers count.
func (s *Service) targets() []Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.o.Targets)
	for _, share := range s.shares {
		i := slices.IndexFunc(all, func(t Target) bool { return t.label() == share.label() })
		if i < 0 {
			all = append(all, share)
			continue
		}
		all[i].Min, all[i].Max = max(all[i].Min, share.Min), max(all[i].Max, share.Max)
		all[i].Build = all[i].Build || share.Build
	}
	return all
}

// forget closes the sandboxes of targets that are no longer there.
func (s *Service) forget(targets []Target) {
	labels := make(map[string]bool)
	for _, t := range targets {
		labels[t.label()] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, spec := range s.specs {
		if !labels[spec.Label] {
			delete(s.specs, k)
			s.pool.Forget(k)
		}
	}
	for label := range s.built {
		if !labels[label] {
			delete(s.built, label)
		}
	}
}

// follow looks again and again whether what the sandboxes are made from has changed.
func (s *Service) follow(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	said := make(map[string]string)
	for {
		s.lookAll(ctx, said)
		select {
		case <-tick.C:
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
}

// lookAll looks at all targets, and logs each new reason for which one is not kept warm.
func (s *Service) lookAll(ctx context.Context, said map[string]string) {
	targets := s.targets()
	s.forget(targets)
	for _, t := range targets {
		err := s.look(ctx, t)
		text := ""
		if err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != "" && said[t.label()] != text {
			s.o.Log.Warn("no sandbox is kept warm", "tenant", t.tenant(), "template", t.template(),
				"error", err, "hint", turnstone.HintOf(err))
		}
		said[t.label()] = text
	}
}

func (t Target) tenant() string   { return cmp.Or(t.Tenant, auth.OperatorTenant) }
func (t Target) template() string { return cmp.Or(t.Template, tenants.DefaultImage) }

// look sets or removes the target t of the pool.
func (s *Service) look(ctx context.Context, t Target) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	st, err := s.o.Tenants.Of(ctx, t.tenant())
	if err != nil {
		return err
	}
	if err := st.Refresh(ctx); err != nil {
		return err
	}
	on, err := st.Executor.DefaultNetwork()
	if err != nil {
		return err
	}
	image := t.template()
	shape := st.Executor.Shape(image)
	m := t.Machine.Over(turnstone.Machine{CPUs: shape.CPUs, Memory: shape.Memory, Disk: shape.Disk})
	spec := plain(sandboxes.Spec{Image: image, Substrate: "auto", Stranger: true,
		Shape: turnstone.Shape{CPUs: m.CPUs, Memory: m.Memory, Disk: m.Disk, Network: on}})
	k := key(st.Tenant, spec)
	generation, err := s.generation(ctx, st, image)
	s.mu.Lock()
	for other := range s.specs { // the default of the network, or of the template's machine, changed
		if other != k && s.specs[other].Label == t.label() {
			delete(s.specs, other)
			s.pool.Forget(other)
		}
	}
	spec.Label = t.label()
	s.specs[k] = spec
	s.mu.Unlock()
	if err != nil {
		s.pool.Forget(k)
		return cmp.Or(s.build(ctx, st, t), err)
	}
	if want := (pool.Target{Min: t.Min, Max: t.Max, Idle: cmp.Or(t.Idle, usualIdle), Generation: generation}); want != s.present(k) {
		s.pool.SetTarget(k, want)
	}
	return nil
}

// build begins to build the template of a target, if it says so.
func (s *Service) build(ctx context.Context, st *tenants.State, t Target) error {
	s.mu.Lock()
	begun := s.built[t.label()]
	due := t.Build && s.o.Build != nil && (begun.IsZero() || time.Since(begun) > buildEvery)
	if due {
		s.built[t.label()] = time.Now()
	}
	s.mu.Unlock()
	if !due {
		return nil
	}
	return s.o.Build(ctx, st, t.template())
}

// label tells the sandboxes of one target from those of others. Nobody sees it.
func (t Target) label() string {
	return fmt.Sprintf("warm %s %s %d %d %d", t.tenant(), t.template(), t.Machine.CPUs, t.Machine.Memory,
		t.Machine.Disk)
}

// present returns the target of a key; its zero value: there is none.
func (s *Service) present(k pool.Key) pool.Target {
	for _, one := range s.pool.Stats() {
		if one.Key == k {
			return one.Target
		}
	}
	return pool.Target{}
}

// plain returns the part of a spec that cannot be changed in a sandbox that runs.
func plain(spec sandboxes.Spec) sandboxes.Spec {
	return sandboxes.Spec{Image: spec.Image, Shape: spec.Shape, Substrate: spec.Substrate,
		Live: spec.Live, Stranger: spec.Stranger && tenants.IsImage(spec.Image)}
}

// key returns the key of the sandboxes that can become one of spec.
func key(tenant string, spec sandboxes.Spec) pool.Key {
	p := plain(spec)
	return pool.Key{Tenant: tenant, Source: p.Image, Shape: p.Shape,
		Policy: fmt.Sprintf("%s live=%t stranger=%t", p.Substrate, p.Live, p.Stranger)}
}

// generation is a digest of what sandboxes of a template are made from. The error is of kind
// Unavailable if the template is not built: the pool builds none.
func (s *Service) generation(ctx context.Context, st *tenants.State, image string) (string, error) {
	d, err := st.Templates.Show(ctx, image)
	if err == nil && !d.Ready {
		err = turnstone.Errorf("warm.look", turnstone.KindUnavailable, "template "+image,
			"is not built").WithHint("build it with turn template build, or create a sandbox of it")
	}
	if err != nil {
		return "", err
	}
	made := fmt.Sprint(d.Digest, " ", d.Built.UnixNano(), " ", stamp(s.o.Holder), " ",
		stamp(st.Dir.Path(config.File)))
	return string(turnstone.DigestBytes([]byte(made))), nil
}

// stamp changes with a file.
func stamp(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "none"
	}
	return fmt.Sprint(info.Size(), " ", info.ModTime().UnixNano())
}

// Memory returns the memory of the machines that wait.
func (s *Service) Memory() turnstone.Bytes {
	if s == nil {
		return 0
	}
	return s.pool.Memory()
}

// Yield closes sandboxes that wait until they have freed this memory, or none is left.
func (s *Service) Yield(want turnstone.Bytes) {
	if s != nil && want > 0 {
		s.pool.Yield(want)
	}
}

// Stats are the state of the sandboxes of one kind.
type Stats = pool.Stats

// Stats returns the state of the pool.
func (s *Service) Stats() []Stats {
	if s == nil {
		return nil
	}
	return s.pool.Stats()
}

// none says that a sandbox has to be made.
func none(why string) error {
	return turnstone.NewError("warm.claim", turnstone.KindNotFound, "the pool", errors.New(why))
}

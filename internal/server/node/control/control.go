// Package control is what a node does for a controller: the handler of NodeService. It authorises no
// scope, because the controller has done so. Who a client is and what it owns, the node decides
// itself, by the keys that clients prove.
// A call works in the state of its principal's tenant, where an object of another tenant does not
// exist.
package control

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/kept"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/server/node/warm"
)

// Options are the parts and bounds of a Service. A zero bound selects its default.
type Options struct {
	Node    *node.Node   // signs the statements
	Tenants *tenants.Set // the Service does not close them
	Version string       // of the program

	// Capacity bounds the machines of all sandboxes and turns together. Default: this computer's
	// CPUs and memory, and the size of the state directory's disk.
	Capacity turnstone.Machine
	// CPUShares is how many CPUs of machines share one of Capacity. Default: 16.
	CPUShares int
	// Substrates are those that work on this computer, for its description.
	Substrates []string
	// Lifetime is the time to a sandbox's stop if the request names none, and LongestLifetime
	// bounds what it names. Defaults: 1 hour, 30 days.
	Lifetime, LongestLifetime time.Duration
	// Ports bounds the exposed ports of the node; 0: 1,000. A tenant has at most half of what others leave.
	Ports int
	// Expose is the host or address on which exposed ports of sandboxes listen, such as 127.0.0.1.
	// Empty: no port can be exposed.
	Expose string
	// TrustOperator makes the node believe a principal that is the operator. It is right only if
	// the controller is in the same process: a controller elsewhere could pretend to be anybody.
	TrustOperator bool
	// TrustController makes the node believe a controller elsewhere about the scopes by which an
	// administrator ends and changes what belongs to other clients.
	TrustController bool

	// Warm are the sandboxes that wait for a claim. Its Room is the Service's.
	Warm Warm
}

// Warm are the settings of sandboxes that wait for a claim, with a target for each kind.
type (
	Warm       = warm.Options
	WarmTarget = warm.Target
	WarmStats  = warm.Stats
)

const (
	defaultLifetime = time.Hour
	longestLifetime = 30 * 24 * time.Hour
)

// A Service implements turnstonev1connect.NodeServiceHandler. It is safe for concurrent use.
type Service struct {
	o       Options
	started time.Time
	board   *board
	busy    locks // of the IDs that calls work on

	ctx  context.Context // of what outlives a call
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	tenants map[*tenants.State]*tenant
	ports   map[portName]*exposed
	builds  map[name]*build

	addresses kept.Ports // of exposed ports

	sizes sizes

	warm     *warm.Service
	draining atomic.Bool

	roomMu  sync.Mutex
	pending map[string]turnstone.Machine // of sandboxes that are being created
	turns   map[string]turnstone.Machine // of turns that run, by their tickets
}

// New returns the service of a node. Close it.
func New(_ context.Context, o Options) (*Service, error) {
	o.Lifetime = cmp.Or(o.Lifetime, defaultLifetime)
	o.Ports = cmp.Or(o.Ports, maxPorts)
	o.LongestLifetime = cmp.Or(o.LongestLifetime, longestLifetime)
	s := &Service{o: o, started: time.Now(), board: newBoard(),
		tenants: make(map[*tenants.State]*tenant), ports: make(map[portName]*exposed),
		builds: make(map[name]*build), pending: make(map[string]turnstone.Machine),
		turns: make(map[string]turnstone.Machine)}
	o.Tenants.Queue().Within(s.turnRoom)
	s.fill()
	s.ctx, s.stop = context.WithCancel(context.Background())
	for _, st := range o.Tenants.All() { // what there is, is on the board before the first watcher
		s.attach(st)
		infos, err := st.Sandboxes.List(s.ctx)
		if err != nil {
			s.stop()
			return nil, err
		}
		for _, i := range infos {
			s.noteSandbox(st, i)
		}
		s.forgetRemoved(st)
	}
	s.lookTemplates(s.ctx)
	o.Tenants.Warm().Within(s.roomAhead)
	o.Warm.Tenants, o.Warm.Room, o.Warm.Build = o.Tenants, s.roomFor, s.buildForPool
	s.warm = warm.New(o.Warm)
	s.describe()
	s.wg.Go(s.follow)
	return s, nil
}

// Close ends watches, builds of templates, exposed ports and sandboxes that wait for a claim, and
// waits for them. Other sandboxes and turns continue.
func (s *Service) Close() error {
	s.stop()
	s.wg.Wait()
	return s.warm.Close()
}

// Share sets the node's shares of the server's pools.
func (s *Service) Share(all []*v1.PoolShare) {
	var targets []warm.Target
	for _, p := range all {
		targets = append(targets, warm.Target{Tenant: p.GetTenant(), Template: p.GetTemplate(),
			Machine: toMachine(p.GetMachine()), Min: int(p.GetMin()), Max: int(p.GetMax()),
			Idle: p.GetIdle().AsDuration(), Build: p.GetBuild()})
	}
	s.warm.Share(targets)
}

// Drain says from now on that the node ends soon.
func (s *Service) Drain() {
	s.draining.Store(true)
	s.describe()
}

// Warm returns the state of the pool of sandboxes that wait for a claim.
func (s *Service) Warm() []WarmStats { return s.warm.Stats() }

// Handler returns the path and the HTTP handler of the service, for other roles only. report gets
// the errors that callers get no text of; it may be nil. around are interceptors of all calls, the
// first one outermost.
func (s *Service) Handler(report serve.Report, around ...connect.Interceptor) (string, http.Handler) {
	around = append(slices.Clone(around), serve.Hide(s.o.Node.Paths()))
	return turnstonev1connect.NewNodeServiceHandler(s, serve.HandlerOptions(report, around...)...)
}

// GetNode answers the node's name, key and capacity, and the state of its pool.
func (s *Service) GetNode(context.Context, *connect.Request[v1.GetNodeRequest]) (
	*connect.Response[v1.GetNodeResponse], error) {
	out := &v1.GetNodeResponse{Node: s.Describe()}
	for _, w := range s.Warm() {
		out.Warm = append(out.Warm, warmMessage(w))
	}
	return connect.NewResponse(out), nil
}

// locks are one lock for each name that is in use.
type locks struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when the lock is free
}

// acquire waits for the lock of id, until ctx ends.
func (l *locks) acquire(ctx context.Context, id string) (release func(), err error) {
	for {
		l.mu.Lock()
		busy := l.held[id]
		if busy == nil {
			if l.held == nil {
				l.held = make(map[string]chan struct{})
			}
			free := make(chan struct{})
			l.held[id] = free
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.held, id)
				close(free)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, turnstone.NewError("node.wait", turnstone.KindCanceled, id,
				context.Cause(ctx))
		}
	}
}

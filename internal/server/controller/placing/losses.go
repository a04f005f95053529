package placing

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/fair"
	"turnstone.dev/turnstone/internal/server/records"
)

// takeover is how long a turn of a lost node may be another node's without the controller's knowing,
// where nodes share sessions: the life of a lease, several times.
const takeover = 5 * time.Minute

// Losses ends what lost nodes had, and remembers these nodes until they are back. Its methods are safe
// for concurrent use.
type Losses struct {
	Records records.Store
	// Shared: each node has each session, and takes turns of lost nodes.
	Shared bool
	// Reconcile records a report.
	Reconcile func(context.Context, records.Report) (records.Outcome, error)

	mu    sync.Mutex
	nodes map[string]bool // whether what the node had is still being ended
}

// Begin notes that a node is being forgotten: it does not register until End or Cancel is called.
func (l *Losses) Begin(node string) { l.set(node, true) }

// Remember notes a node that an earlier controller has forgotten.
func (l *Losses) Remember(node string) { l.set(node, false) }

func (l *Losses) set(node string, ends bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nodes == nil {
		l.nodes = map[string]bool{}
	}
	l.nodes[node] = ends
}

// Cancel notes that a node is not forgotten, or is back.
func (l *Losses) Cancel(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.nodes, node)
}

// Gone reports whether a node was forgotten, and the error for one that registers too early.
func (l *Losses) Gone(node string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends, gone := l.nodes[node]
	if ends {
		return true, &api.Status{RetryAfter: time.Second, Err: turnstone.Errorf("node.register",
			turnstone.KindUnavailable, "node "+node, "is being removed").WithHint("register again")}
	}
	return gone, nil
}

// Forget ends what a node had that Begin was called for, and that was silent for a time.
func (l *Losses) Forget(ctx context.Context, n records.Node, silent time.Duration) (records.Outcome, error) {
	mark, err := l.Records.Mark(ctx)
	if err != nil {
		return records.Outcome{}, err
	}
	out, err := l.Reconcile(ctx, records.Report{Node: n.Name, Mark: mark, Stays: func(o records.Object) bool {
		return l.Shared && (o.Kind == records.Session || o.Kind == records.Turn && silent < takeover)
	}})
	if err == nil {
		n.State, n.Seen = records.NodeGone, time.Now()
		err = l.Records.PutNode(ctx, n)
	}
	if err == nil {
		l.set(n.Name, false)
	}
	return out, err
}

// Removed is the answer about what a node had.
func Removed(lost []records.Object) *connect.Response[v1.RemoveNodeResponse] {
	m := &v1.RemoveNodeResponse{}
	of := map[records.Kind]*uint32{records.Sandbox: &m.Sandboxes, records.Turn: &m.Turns,
		records.Session: &m.Sessions, records.Snapshot: &m.Snapshots}
	for _, o := range lost {
		*of[o.Kind]++
	}
	return connect.NewResponse(m)
}

// CheckLeave reports why a node in a state cannot be removed.
func (f *Fleet) CheckLeave(node string) error {
	switch s := f.State(node); {
	case s == Lost:
		return nil
	case s.Answers():
		return &api.Status{Code: connect.CodeFailedPrecondition, Err: turnstone.Errorf("node.remove",
			turnstone.KindInvalid, "node "+node, "answers").
			WithHint("end its program first, and wait until it counts as lost")}
	}
	return turnstone.Errorf("node.remove", turnstone.KindNotFound, "node "+node, "is not there").
		WithHint("turn node ls lists the nodes")
}

// LostSince returns when a lost node registered last, and nil for others.
func (f *Fleet) LostSince(node string) *timestamppb.Timestamp {
	if f.State(node) != Lost {
		return nil
	}
	return timestamppb.New(f.Seen(node))
}

// Way names the node in the errors of connections to it: their texts have addresses of the server's own
// network, which mean nothing to a caller. The log has them. Calls end with the context of the node,
// which ends when the node is lost: a computer without power does not close its connections.
func Way(node context.Context, name string, log *slog.Logger) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			var a connect.AnyResponse
			var err error
			ask, end := context.WithCancel(ctx)
			defer end()
			defer context.AfterFunc(node, end)()
			fair.Rest(ctx, func() { a, err = next(ask, r) })
			if err != nil && ctx.Err() == nil && node.Err() != nil || api.Unreached(ctx, err) {
				log.InfoContext(ctx, "a node cannot be reached", "node", name, "error", err)
				return nil, Silent(name, time.Second)
			}
			return a, err
		}
	}
}

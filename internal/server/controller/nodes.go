package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/fair"
	"turnstone.dev/turnstone/internal/server/records"
)

// A node is what the controller knows of a node. Its fields are guarded by registry.mu.
type node struct {
	name, address string
	client        connectv1.NodeServiceClient
	info          *v1.Node // replaced, never changed
	seen          time.Time
	up            bool // it registered lately
	synced        bool // its list is complete
	templates     map[string]*v1.Template
	placed        []placement // since info
	making        []making    // sandboxes
	stop          context.CancelFunc
}

// A placement is a machine that the node's own numbers may not have yet.
type placement struct {
	at     time.Time
	cpus   uint32
	memory uint64
	disk   uint64
}

// A registry has the nodes by their names.
type registry struct {
	mu     sync.Mutex
	all    map[string]*node
	closed bool
}

func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, n := range r.all {
		n.stop()
	}
}

// maxNodes bounds the nodes of a server.
const maxNodes = 1000

// register notes that a node is there. It begins to follow a node that is new, was lost, or has
// moved.
func (c *Controller) register(ctx context.Context, info *v1.Node, address string) error {
	r := &c.nodes
	r.mu.Lock()
	n := r.all[info.Name]
	if n == nil && len(r.all) >= maxNodes {
		r.mu.Unlock()
		return turnstone.Errorf("node.register", turnstone.KindExhausted, info.Name,
			"there are %d nodes already", maxNodes)
	}
	if n != nil && n.info.GetKey() != info.Key && n.info != nil {
		c.log.Warn("a node has another key", "node", info.Name)
	}
	fresh := n == nil || !n.up || n.address != address
	record := fresh || !proto.Equal(stable(n.info), stable(info))
	if fresh {
		if n != nil {
			n.stop()
		}
		n = c.enter(info.Name, address)
	}
	n.learn(info)
	n.seen, n.up = time.Now(), true
	r.mu.Unlock()
	c.gate.Wake()
	c.hub.wakeTemplates()
	if !record {
		return nil
	}
	return c.recordNode(ctx, info, address, records.NodeUp)
}

// enter makes a node, and follows it. The caller holds registry.mu.
func (c *Controller) enter(name, address string) *node {
	ctx, stop := context.WithCancel(c.ctx)
	n := &node{name: name, address: address, stop: stop,
		client:    c.o.Nodes(address, connect.WithInterceptors(c.wayTo(name))),
		templates: map[string]*v1.Template{}}
	if old := c.nodes.all[name]; old != nil {
		n.templates, n.info, n.placed, n.making = old.templates, old.info, old.placed, old.making
	}
	c.nodes.all[name] = n
	if c.nodes.closed {
		stop()
	} else {
		c.tasks.Go(func() { c.follow(ctx, n) })
	}
	return n
}

// settle is how long a placement counts beside the node's own numbers: a report that was made
// before the placement may arrive after it.
const settle = 10 * time.Second

// learn takes a node's own numbers. The caller holds registry.mu.
func (n *node) learn(info *v1.Node) {
	n.info = info
	n.placed = slices.DeleteFunc(n.placed, func(p placement) bool {
		return time.Since(p.at) > settle
	})
}

// stable is what of a node is worth a record.
func stable(n *v1.Node) *v1.Node {
	if n == nil {
		return nil
	}
	s := proto.Clone(n).(*v1.Node)
	s.Used = nil
	return s
}

func (c *Controller) recordNode(ctx context.Context, info *v1.Node, address string,
	state records.NodeState) error {
	detail, err := proto.Marshal(stable(info))
	if err != nil {
		return err
	}
	return c.o.Records.PutNode(ctx, records.Node{Name: info.GetName(), State: state,
		Address: address, Detail: detail, Seen: time.Now()})
}

// resume follows the nodes that were there when an earlier controller ended.
func (c *Controller) resume(ctx context.Context) error {
	all, err := c.o.Records.Nodes(ctx)
	if err != nil {
		return err
	}
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	for _, n := range all {
		info := &v1.Node{}
		if n.State != records.NodeUp || proto.Unmarshal(n.Detail, info) != nil {
			continue
		}
		info.Name = n.Name
		x := c.enter(n.Name, n.Address)
		x.info, x.seen, x.up = info, time.Now(), true
	}
	return nil
}

// loseNodes ends the connections to nodes that stay away. Their objects keep their states: the node
// says what became of them when it returns.
func (c *Controller) loseNodes(ctx context.Context) error {
	c.nodes.mu.Lock()
	var lost []*node
	for _, n := range c.nodes.all {
		if n.up && time.Since(n.seen) > c.o.Times.Lost {
			n.up, n.synced = false, false
			n.stop()
			lost = append(lost, n)
		}
	}
	c.nodes.mu.Unlock()
	var failed error
	for _, n := range lost {
		c.log.Warn("a node is lost", "node", n.name)
		c.hub.wakeTemplates()
		if err := c.recordNode(ctx, n.info, n.address, records.NodeLost); err != nil {
			failed = err
		}
	}
	return failed
}

// at returns a client of the node called name. The error is of kind Unavailable if it is lost.
func (c *Controller) at(name string) (connectv1.NodeServiceClient, error) {
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	if n := c.nodes.all[name]; n != nil && n.up {
		return n.client, nil
	}
	return nil, lost(name)
}

func lost(name string) error { return silent(name, 5*time.Second) }

func silent(name string, wait time.Duration) error {
	return &api.Status{RetryAfter: wait, Err: turnstone.Errorf("node.call",
		turnstone.KindUnavailable, "node "+name, "does not answer").
		WithHint("wait until the node is back")}
}

// wayTo names the node in the errors of connections to it: their texts have addresses of the
// server's own network, which mean nothing to a caller. The log has them.
func (c *Controller) wayTo(name string) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			var a connect.AnyResponse
			var err error
			fair.Rest(ctx, func() { a, err = next(ctx, r) })
			var e *connect.Error
			if errors.As(err, &e) && !connect.IsWireError(e) && ctx.Err() == nil &&
				// a connection that breaks while the request is written is "canceled"
				(e.Code() == connect.CodeUnavailable || e.Code() == connect.CodeCanceled) {
				c.log.InfoContext(ctx, "a node cannot be reached", "node", name, "error", err)
				return nil, silent(name, time.Second)
			}
			return a, err
		}
	}
}

// present returns the nodes that are up, in the order of their names.
func (r *registry) present() []*v1.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*v1.Node
	for _, n := range r.all {
		if n.up && n.info != nil {
			all = append(all, n.info)
		}
	}
	slices.SortFunc(all, func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
	return all
}

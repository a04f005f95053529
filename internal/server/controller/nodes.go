package controller

import (
	"context"
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
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/fair"
	"turnstone.dev/turnstone/internal/server/records"
)

// A node is what the controller knows of a node. Its fields are guarded by registry.mu.
type node struct {
	name, address string
	client        connectv1.NodeServiceClient
	info          *v1.Node // replaced, never changed
	templates     map[string]*v1.Template
	stop          context.CancelFunc
}

// A registry has the nodes by their names.
type registry struct {
	mu     sync.Mutex
	all    map[string]*node
	fleet  *placing.Fleet // which nodes are there, and which gets what
	closed bool
}

// answers reports whether a node registered lately. The caller holds mu.
func (r *registry) answers(n *node) bool { return r.fleet.State(n.name).Answers() }

// place returns the room for a need.
func (r *registry) place(n placing.Need) (placing.Room, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fleet.Place(n)
}

// able returns a node for work without a machine, preferably one with a template.
func (r *registry) able(template string) (string, error) {
	room, err := r.place(placing.Need{Template: template})
	return room.Node, err
}

// free ends a reservation whose node was asked, or was not.
func (r *registry) free(x placing.Room, asked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if asked {
		r.fleet.Done(x)
	} else {
		r.fleet.Drop(x)
	}
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
	if n != nil && n.info != nil && n.info.GetKey() != info.Key {
		if n.address != address && r.answers(n) {
			r.mu.Unlock()
			return takenName(info.Name) // with its list, all that the other one has would count as lost
		}
		c.log.Warn("a node has another key", "node", info.Name)
	}
	before, after := r.fleet.Register(info)
	info.Warm = nil // it names tenants
	fresh := n == nil || !before.Answers() || n.address != address
	record := fresh || before != after || !proto.Equal(stable(n.info), stable(info))
	if fresh {
		if n != nil {
			n.stop()
		}
		n = c.enter(info.Name, address)
	}
	n.info = info
	r.mu.Unlock()
	c.gate.Wake()
	c.hub.wakeTemplates()
	if !record {
		return nil
	}
	state := records.NodeUp
	if after == placing.Draining {
		state = records.NodeDraining
	}
	return c.recordNode(ctx, info, address, state)
}

// takenName is the error about a node that has the name of another one.
func takenName(name string) error {
	return &api.Status{RetryAfter: 5 * time.Second, Err: turnstone.Errorf("node.register",
		turnstone.KindUnavailable, "node "+name, "is at another address with another key, and answers").
		WithHint("give this node another name, or end the other one")}
}

// enter makes a node, and follows it. The caller holds registry.mu.
func (c *Controller) enter(name, address string) *node {
	ctx, stop := context.WithCancel(c.ctx)
	n := &node{name: name, address: address, stop: stop,
		client:    c.o.Nodes(address, connect.WithInterceptors(c.wayTo(name))),
		templates: map[string]*v1.Template{}}
	if old := c.nodes.all[name]; old != nil {
		n.templates, n.info = old.templates, old.info
	}
	c.nodes.all[name] = n
	c.nodes.fleet.Sync(name, false)
	if c.nodes.closed {
		stop()
	} else {
		c.tasks.Go(func() { c.follow(ctx, n) })
	}
	return n
}

// stable is what of a node is worth a record.
func stable(n *v1.Node) *v1.Node {
	if n == nil {
		return nil
	}
	s := proto.Clone(n).(*v1.Node)
	s.Used, s.Warm, s.AvailableMemory, s.DiskFull, s.StoreAway = nil, nil, 0, false, ""
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
	machines := c.ledger.Machines()
	c.nodes.mu.Lock()
	defer c.nodes.mu.Unlock()
	for _, n := range all {
		info := &v1.Node{}
		if n.State == records.NodeLost || proto.Unmarshal(n.Detail, info) != nil {
			continue
		}
		info.Name = n.Name
		c.nodes.fleet.Remember(info, machines[n.Name])
		c.enter(n.Name, n.Address).info = info
	}
	return nil
}

// loseNodes ends the connections to nodes that stay away. Their objects keep their states: the node
// says what became of them when it returns.
func (c *Controller) loseNodes(ctx context.Context) error {
	c.nodes.mu.Lock()
	var lost []*node
	for _, name := range c.nodes.fleet.Tick() {
		n := c.nodes.all[name]
		n.stop()
		lost = append(lost, n)
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
	if n := c.nodes.all[name]; n != nil && c.nodes.answers(n) {
		return n.client, nil
	}
	return nil, lost(name)
}

func lost(name string) error { return placing.Silent(name, 5*time.Second) }

// wayTo names the node in the errors of connections to it: their texts have addresses of the
// server's own network, which mean nothing to a caller. The log has them.
func (c *Controller) wayTo(name string) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			var a connect.AnyResponse
			var err error
			fair.Rest(ctx, func() { a, err = next(ctx, r) })
			if api.Unreached(ctx, err) {
				c.log.InfoContext(ctx, "a node cannot be reached", "node", name, "error", err)
				return nil, placing.Silent(name, time.Second)
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
		if r.answers(n) && n.info != nil {
			all = append(all, n.info)
		}
	}
	slices.SortFunc(all, func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
	return all
}

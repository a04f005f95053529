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
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/records"
)

// A node is what the controller knows of a node. Its fields are guarded by registry.mu.
type node struct {
	name, address string
	client        connectv1.NodeServiceClient
	info          *v1.Node // replaced, never changed
	templates     map[string]*v1.Template
	stop          context.CancelFunc
	away          bool // it was lost, and its list was not compared since
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
	gone, err := c.losses.Gone(info.Name)
	if err != nil {
		return err
	}
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
	if gone { // it gets no new work before its list was compared
		r.fleet.RememberLost(info, time.Now())
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
	n.info, n.away = info, n.away || before == placing.Lost
	record = record && !n.away // else an earlier controller's successor would not know
	r.mu.Unlock()
	c.gate.Wake()
	c.hub.wakeTemplates()
	if !record {
		return nil
	}
	return c.recordNode(ctx, info, address, stateOf(info))
}

func stateOf(info *v1.Node) records.NodeState {
	if info.GetDraining() {
		return records.NodeDraining
	}
	return records.NodeUp
}

// returned records that a node is back, once its list was compared.
func (c *Controller) returned(ctx context.Context, n *node) error {
	c.nodes.mu.Lock()
	info, away := n.info, n.away
	c.nodes.mu.Unlock()
	if !away {
		return nil
	}
	if err := c.recordNode(ctx, info, n.address, stateOf(info)); err != nil {
		return err
	}
	c.losses.Cancel(n.name)
	c.nodes.mu.Lock()
	n.away = false
	c.nodes.mu.Unlock()
	return nil
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
		client:    c.o.Nodes(address, connect.WithInterceptors(placing.Way(ctx, name, c.log))),
		templates: map[string]*v1.Template{}}
	if old := c.nodes.all[name]; old != nil {
		n.templates, n.info, n.away = old.templates, old.info, old.away
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
	c.nodes.mu.Lock()
	seen := c.nodes.fleet.Seen(info.GetName())
	c.nodes.mu.Unlock()
	detail, err := proto.Marshal(stable(info))
	if err != nil {
		return err
	}
	return c.o.Records.PutNode(ctx, records.Node{Name: info.GetName(), State: state,
		Address: address, Detail: detail, Seen: seen})
}

// resume follows the nodes that were there when an earlier controller ended, and knows the others.
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
		if proto.Unmarshal(n.Detail, info) != nil {
			continue
		}
		info.Name = n.Name
		switch n.State {
		case records.NodeGone:
			c.losses.Remember(n.Name)
		case records.NodeLost:
			c.nodes.fleet.RememberLost(info, n.Seen)
			c.nodes.all[n.Name] = &node{name: n.Name, address: n.Address, info: info, stop: func() {}}
		default:
			c.nodes.fleet.Remember(info, machines[n.Name])
			c.enter(n.Name, n.Address).info = info
		}
	}
	return nil
}

// loseNodes ends the connections to nodes that stay away. Their objects keep their states: the node
// says what became of them when it returns. What does not return is forgotten in the end.
func (c *Controller) loseNodes(ctx context.Context) error {
	var lost, gone []*node
	c.nodes.mu.Lock()
	names, forgotten := c.nodes.fleet.Tick()
	for _, name := range names {
		n := c.nodes.all[name]
		n.stop()
		lost = append(lost, n)
	}
	for _, name := range forgotten {
		gone = append(gone, c.nodes.leave(c, name))
	}
	c.nodes.mu.Unlock()
	var failed error
	for _, n := range lost {
		c.log.Warn("a node is lost", "node", n.name)
		c.hub.wakeTemplates()
		if err := c.recordNode(ctx, n.info, n.address, records.NodeLost); err != nil {
			failed = err
		}
		c.abandon(ctx, c.unmade.TakeOf(n.name))
	}
	for _, n := range gone {
		if _, err := c.forget(ctx, n, c.o.Times.Forget); err != nil {
			failed = err
		}
	}
	return failed
}

// leave removes a node that is lost from those that the controller knows. The caller holds mu.
func (r *registry) leave(c *Controller, name string) *node {
	n := r.all[name]
	delete(r.all, name)
	c.losses.Begin(name)
	return n
}

// forget ends what a node had that has left.
func (c *Controller) forget(ctx context.Context, n *node, silent time.Duration) (records.Outcome, error) {
	out, err := c.losses.Forget(ctx, records.Node{Name: n.name, Address: n.address}, silent)
	if err != nil { // the next look forgets it
		c.nodes.mu.Lock()
		c.nodes.fleet.RememberLost(n.info, time.Now().Add(-silent))
		c.nodes.all[n.name] = n
		c.nodes.mu.Unlock()
		c.losses.Cancel(n.name)
		return out, err
	}
	c.log.Warn("a lost node is forgotten", "node", n.name, "objects", len(out.Lost))
	return out, nil
}

// RemoveNode implements turnstonev1connect.ServerServiceHandler.
func (c serverService) RemoveNode(ctx context.Context, r *connect.Request[v1.RemoveNodeRequest]) (
	*connect.Response[v1.RemoveNodeResponse], error) {
	name := r.Msg.Name
	c.nodes.mu.Lock()
	if err := c.nodes.fleet.CheckLeave(name); err != nil {
		c.nodes.mu.Unlock()
		return nil, err
	}
	silent := time.Since(c.nodes.fleet.Seen(name))
	c.nodes.fleet.Leave(name)
	n := c.nodes.leave(c.Controller, name)
	c.nodes.mu.Unlock()
	ctx, end := system(ctx)
	defer end()
	out, err := c.forget(ctx, n, silent)
	if err != nil {
		return nil, err
	}
	return placing.Removed(out.Lost), nil
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

// present returns the nodes that are up, and those that are lost, in the order of their names.
func (r *registry) present() (all []*v1.Node, lost []*v1.LostNode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.all {
		if r.answers(n) && n.info != nil {
			all = append(all, n.info)
		} else if since := r.fleet.LostSince(n.name); since != nil {
			lost = append(lost, &v1.LostNode{Node: n.info, Since: since})
		}
	}
	slices.SortFunc(all, func(a, b *v1.Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(lost, func(a, b *v1.LostNode) int { return strings.Compare(a.Node.Name, b.Node.Name) })
	return all, lost
}

// shown returns the message of a sandbox's record, with what is known of its node.
func (c *Controller) shown(x message.Seen) *v1.Sandbox {
	s := message.Sandbox(x)
	if !x.State.Final() {
		c.nodes.mu.Lock()
		s.NodeLost = c.nodes.fleet.LostSince(x.Node)
		c.nodes.mu.Unlock()
	}
	return s
}

package agents

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Nodes are those of a server. A Server may implement it.
type Nodes interface {
	Fleet(ctx context.Context) ([]Node, error)
}

// A Node is one of a server.
type Node struct {
	Name string
	// Draining: it ends. Of a lost node: it said so before.
	Draining bool
	Lost     bool
	// Untrusted is why nothing is believed that the node signs; "": it is.
	Untrusted string
}

// nodesEvery is the time between two looks at the nodes.
const nodesEvery = 5 * time.Second

// A fleet follows the nodes of a server, and asks for the objects on those that change. Its methods are
// safe for concurrent use.
type fleet struct {
	from   Nodes // nil: the server does not say
	to     client.Client
	tell   events.EventRecorder
	events chan event.GenericEvent
	log    *slog.Logger

	looks sync.Mutex // held by one look at a time
	mu    sync.Mutex
	all   map[string]Node // nil: not known yet
	last  time.Time       // of the last look
}

func newFleet(o *Options, to client.Client, tell events.EventRecorder) *fleet {
	f := &fleet{to: to, tell: tell, events: make(chan event.GenericEvent, parallel), log: o.Log}
	f.from, _ = o.Server.(Nodes)
	return f
}

// Start implements manager.Runnable. It runs where the leader is.
func (f *fleet) Start(ctx context.Context) error {
	if f.from == nil {
		return nil
	}
	for t := time.NewTicker(nodesEvery); ; {
		if err := f.look(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("the nodes were not listed", "error", err)
		}
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// pause is the least time between two looks for a node that is not known.
const pause = time.Second

// node returns what is known of a node, also of one that is new. Without the nodes nothing is: whoever
// connects to a sandbox verifies its node.
func (f *fleet) node(ctx context.Context, name string) Node {
	if f.from == nil {
		return Node{}
	}
	if n, known := f.known(name); known {
		return n
	}
	f.looks.Lock()
	defer f.looks.Unlock()
	f.mu.Lock()
	fresh := time.Since(f.last) < pause
	f.mu.Unlock()
	if !fresh {
		if err := f.update(ctx); err != nil && ctx.Err() == nil {
			f.log.Warn("the nodes were not listed", "error", err)
		}
	}
	n, _ := f.known(name)
	return n
}

func (f *fleet) known(name string) (Node, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, known := f.all[name]
	return n, known
}

// look lists the nodes, and asks for the objects on those that have changed since the last look. All
// objects are looked at when an operator starts.
func (f *fleet) look(ctx context.Context) error {
	f.looks.Lock()
	defer f.looks.Unlock()
	return f.update(ctx)
}

// update is look for a caller that holds looks.
func (f *fleet) update(ctx context.Context) error {
	list, err := f.from.Fleet(ctx)
	now := make(map[string]Node, len(list))
	for _, n := range list {
		now[n.Name] = n
	}
	f.mu.Lock()
	before := f.all
	if f.last = time.Now(); err == nil {
		f.all = now
	}
	f.mu.Unlock()
	if err != nil || before == nil {
		return err
	}
	changed := map[string]bool{} // and whether the node begins to drain
	for name, n := range now {
		if old := before[name]; old != n {
			changed[name] = n.Draining && !n.Lost && !old.Draining
		}
	}
	for name := range before { // what is gone with its node is replaced
		if _, there := now[name]; !there {
			changed[name] = false
		}
	}
	if err = f.ask(ctx, changed); err != nil { // the next look finds the change again
		f.mu.Lock()
		f.all = before
		f.mu.Unlock()
	}
	return err
}

// ask asks for the objects on nodes.
func (f *fleet) ask(ctx context.Context, changed map[string]bool) error {
	if len(changed) == 0 {
		return nil
	}
	all := &sandboxv1.SandboxList{}
	if err := f.to.List(ctx, all); err != nil {
		return err
	}
	for n := range all.Items {
		s := &all.Items[n]
		drains, on := changed[s.Status.NodeName]
		if !on {
			continue
		}
		if drains {
			f.tell.Eventf(s, nil, corev1.EventTypeWarning, ReasonDraining, "Follow", "node %s ends soon, and the sandbox "+
				"with it if it does not outlive the node's program", s.Status.NodeName)
		}
		select {
		case f.events <- event.GenericEvent{Object: s}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// unreachable is the taint of a node of Kubernetes that does not answer.
const unreachable = "node.kubernetes.io/unreachable"

// tolerated returns how long a pod stays on a node that does not answer; never: for ever. It is what
// Kubernetes makes of the pod's tolerations, and usual without one.
func tolerated(pod *corev1.PodSpec, usual time.Duration) (d time.Duration, never bool) {
	found := false
	for _, t := range pod.Tolerations {
		if t.Effect != "" && t.Effect != corev1.TaintEffectNoExecute || t.Key != unreachable && t.Key != "" ||
			t.Key == "" && t.Operator != corev1.TolerationOpExists || t.Value != "" {
			continue
		}
		if t.TolerationSeconds == nil {
			never = never || !found
			found = true
			continue
		}
		wait := time.Duration(max(0, min(*t.TolerationSeconds, 1<<31))) * time.Second
		if !found || never || wait < d {
			d = wait
		}
		found, never = true, false
	}
	if !found {
		return usual, false
	}
	return d, never
}

// others returns the sandboxes of a list but one.
func others(all []*v1.Sandbox, one *v1.Sandbox) []*v1.Sandbox {
	return slices.DeleteFunc(slices.Clone(all), func(x *v1.Sandbox) bool { return x.SandboxId == one.SandboxId })
}

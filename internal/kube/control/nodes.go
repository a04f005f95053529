package control

import (
	"context"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// A fleet is what the server said of its nodes last.
type fleet struct {
	mu    sync.Mutex // held while the server is asked
	asked time.Time
	bad   []string // nodes that this client does not trust
}

const (
	// fresh is how long an answer about the nodes counts. A node that is new may get a sandbox meanwhile,
	// which is replaced then.
	fresh = 5 * time.Second
	// maxAvoid bounds the nodes that a request avoids, as the control API does.
	maxAvoid = 256
	// listTime bounds a list of the nodes: what a caller wants is more than that.
	listTime = 10 * time.Second
)

// Fleet implements agents.Nodes. It needs the scope nodes:read.
func (c *Client) Fleet(ctx context.Context) ([]agents.Node, error) {
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	return c.list(ctx)
}

// list is Fleet for a caller that holds the lock.
func (c *Client) list(ctx context.Context) (all []agents.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	c.fleet.asked = time.Now()
	a, err := c.own.Server.ListNodes(ctx, connect.NewRequest(&v1.ListNodesRequest{}))
	if err != nil {
		return nil, err
	}
	var bad []string
	for _, n := range a.Msg.Nodes {
		node := agents.Node{Name: n.GetName(), Draining: n.GetDraining()}
		why, err := c.own.Distrusts(ctx, n)
		if err != nil {
			return nil, err
		}
		if node.Untrusted = why; why != "" {
			bad = append(bad, n.GetName())
		}
		all = append(all, node)
	}
	for _, l := range a.Msg.Lost {
		all = append(all, agents.Node{Name: l.GetNode().GetName(), Draining: l.GetNode().GetDraining(), Lost: true})
	}
	slices.Sort(bad)
	c.fleet.bad = bad[:min(len(bad), maxAvoid)]
	return all, nil
}

// untrusted returns the nodes that get nothing of this client, as far as it knows: whoever uses a sandbox
// verifies its node.
func (c *Client) untrusted(ctx context.Context) []string {
	c.fleet.mu.Lock()
	defer c.fleet.mu.Unlock()
	if time.Since(c.fleet.asked) > fresh {
		if _, err := c.list(ctx); turnstone.KindOf(err) == turnstone.KindDenied {
			c.fleet.bad = nil
		}
	}
	return slices.Clone(c.fleet.bad)
}

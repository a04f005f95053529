package runner

import (
	"context"

	"connectrpc.com/connect"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/wire"
)

// nodesOf are the nodes of a server.
type nodesOf struct{ server *remote.Server }

// List implements atnode.Nodes.
func (n nodesOf) List(ctx context.Context) (names []string, err error) {
	a, err := n.server.Server.ListNodes(ctx, connect.NewRequest(&v1.ListNodesRequest{}))
	if err != nil {
		return nil, err
	}
	for _, node := range a.Msg.Nodes {
		names = append(names, node.Name)
	}
	return names, nil
}

// Dial implements atnode.Nodes. Without a name, the server selects the node.
func (n nodesOf) Dial(ctx context.Context, node string) (*wire.Client, error) {
	stream, err := n.server.NodeChannel(ctx, node)
	if err != nil {
		return nil, err
	}
	c := wire.NewClient(stream)
	if err := n.server.Unlock(ctx, c); err != nil {
		_ = c.Close()
		c.Wait()
		return nil, err
	}
	return c, nil
}

// Unseen says in one line which sessions the lists of the host leave out for its operator, and in
// another where they are; both are empty if there are none, or if nobody expects them.
func (h *Host) Unseen(ctx context.Context) (what, hint string) {
	if !h.turns.Server.Operator() {
		return "", ""
	}
	if operates, err := h.Operates(ctx); err != nil || operates {
		return "", ""
	}
	return "the node is another process than the controller, which cannot tell it who its operator " +
			"is: only what belongs to the key of this client is listed",
		"on the node's machine, TURN_HOST=local with the node's TURN_HOME lists all"
}

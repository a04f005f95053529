package atnode

import (
	"context"
	"errors"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// Nodes are the nodes of a server that can have several.
type Nodes interface {
	// List returns the names of the nodes that are there.
	List(ctx context.Context) ([]string, error)
	// Dial connects to one of them.
	Dial(ctx context.Context, node string) (*wire.Client, error)
}

// at returns a connection to a node of x.Nodes. It makes one if there is none.
func (x *Executor) at(ctx context.Context, node string) (*wire.Client, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return nil, errClosed()
	}
	if c := x.named[node]; c != nil && !ended(c) {
		return c, nil
	}
	c, err := x.Nodes.Dial(ctx, node)
	if err != nil {
		return nil, err
	}
	if x.named == nil {
		x.named = map[string]*wire.Client{}
	}
	x.named[node] = c
	return c, nil
}

// elsewhere runs an operation about something that the first node does not know at the other nodes,
// until one knows it. What no node knows has the error of the node that knows most.
func (x *Executor) elsewhere(ctx context.Context, unknown error, f func(c *wire.Client) error) error {
	nodes, err := x.Nodes.List(ctx)
	if err != nil || len(nodes) < 2 {
		return unknown // such as of a token that may not list nodes
	}
	for _, node := range nodes {
		c, err := x.at(ctx, node)
		if err == nil {
			err = x.ofNode(f(c))
		}
		if turnstone.KindOf(err) != turnstone.KindNotFound {
			return err
		}
		if !ofSession(err) {
			unknown = err
		}
	}
	return unknown
}

// ofSession reports whether err says that a session is not known, and nothing about what is in it.
func ofSession(err error) bool {
	var e *turnstone.Error
	return errors.As(err, &e) && (e.Op == "session.find" || e.Op == "session.owner")
}

// merged runs a command that sends a list at each node, and returns all lists as one.
func merged[T any](ctx context.Context, x *Executor,
	command func(c *wire.Client, report wire.StreamID) error) ([]T, error) {
	var nodes []string
	if x.Nodes != nil {
		var err error
		nodes, err = x.Nodes.List(ctx)
		if err != nil && turnstone.KindOf(err) != turnstone.KindDenied {
			return nil, err
		}
	}
	if len(nodes) < 2 {
		return fetch[[]T](ctx, x, command)
	}
	all := []T{}
	for _, node := range nodes {
		c, err := x.at(ctx, node)
		if err != nil {
			return nil, err
		}
		one, err := answer[[]T](ctx, c, command)
		if err != nil {
			return nil, x.ofNode(err)
		}
		all = append(all, one...)
	}
	return all, nil
}

// Sessions lists the sessions that this client may use at all nodes, the most recently used first.
func (x *Executor) Sessions(ctx context.Context) ([]turnstone.SessionInfo, error) {
	all, err := merged[turnstone.SessionInfo](ctx, x,
		func(c *wire.Client, id wire.StreamID) error {
			return c.SessionList(ctx, &wire.SessionListParams{Report: id})
		})
	slices.SortStableFunc(all, func(a, b turnstone.SessionInfo) int { return b.Used.Compare(a.Used) })
	seen := map[turnstone.SessionID]bool{} // nodes may share their sessions
	all = slices.DeleteFunc(all, func(s turnstone.SessionInfo) bool {
		before := s.ID != "" && seen[s.ID]
		seen[s.ID] = true
		return before
	})
	return all, err
}

// Homes is executor.Executor.Homes, of the caller's homes at all nodes.
func (x *Executor) Homes(ctx context.Context) ([]turnstone.HomeInfo, error) {
	return merged[turnstone.HomeInfo](ctx, x, func(c *wire.Client, id wire.StreamID) error {
		return c.SessionHomes(ctx, &wire.SessionHomesParams{Report: id})
	})
}

// Operates reports whether the node takes this client for its operator, who may use all sessions.
func (x *Executor) Operates(ctx context.Context) (bool, error) {
	// the refusal of everybody else comes first; no turn has this reference
	_, err := x.SignTurn(ctx, "")
	var e *turnstone.Error
	switch {
	case errors.As(err, &e) && e.Op == "session.operator":
		return false, nil
	case errors.As(err, &e) && (e.Kind == turnstone.KindNotFound || e.Kind == turnstone.KindInvalid):
		return true, nil
	}
	return err == nil, err
}

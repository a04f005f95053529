// Package guide chooses nodes for the work of sessions. Where nodes share their sessions, that of an
// earlier turn is preferred, because it has warm state, and any other will do.
package guide

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/records"
)

// A Node is a client of one.
type Node = connectv1.NodeServiceClient

// A Guide is a controller's.
type Guide struct {
	// Shared: each node has each session. Otherwise only the node of its record has a session.
	Shared bool
	Place  func(placing.Need) (placing.Room, error)
	At     func(node string) (Node, error)
	Change func(context.Context, records.Object, records.Change) (records.Object, error)
	// Pend notes that a node's list may miss objects until the function is called.
	Pend func(node string, ids ...string) (done func())
}

// Room returns room for a need at a session's node near, or elsewhere if the session allows it; near is
// empty if any node will do.
func (g *Guide) Room(n placing.Need, near string) (placing.Room, error) {
	if near == "" || n.Node != "" {
		return g.Place(n)
	}
	at := n
	at.Node = near
	room, err := g.Place(at)
	if err != nil && g.Shared {
		return g.Place(n)
	}
	return room, err
}

// Call calls f with the node of a session or of a turn that has not begun. If that node does not answer
// and the session is at others too, it calls f with one of these, which has the object from then on. The
// object is returned as it is recorded.
func (g *Guide) Call(ctx context.Context, o records.Object, n placing.Need,
	f func(o records.Object, node Node) error) (records.Object, error) {
	node, err := g.At(o.Node)
	if err == nil {
		err = f(o, node)
	}
	if !g.Shared || !away(err) || ctx.Err() != nil {
		return o, err
	}
	n.Node = ""
	room, other := g.Place(n)
	if other != nil || room.Node == o.Node {
		return o, err
	}
	if node, other = g.At(room.Node); other != nil {
		return o, err
	}
	defer g.Pend(room.Node, o.ID)()
	// First: the controller removes a turn from a node that should not have it.
	if o, err = g.Move(ctx, o, room.Node); err != nil {
		return o, err
	}
	return o, f(o, node)
}

// Ask calls f with the node of a turn, or with another one that knows what that node told of the turn, if
// it does not answer.
func (g *Guide) Ask(ctx context.Context, o records.Object, f func(node Node) error) error {
	node, err := g.At(o.Node)
	if err == nil {
		err = f(node)
	}
	if !g.Shared || !away(err) || ctx.Err() != nil {
		return err
	}
	room, other := g.Place(placing.Need{})
	if other == nil && room.Node != o.Node {
		if node, other = g.At(room.Node); other == nil {
			return f(node)
		}
	}
	return err
}

// Later reports whether a node's turn is a later attempt than that of the record: it began later.
func Later(have, told records.Object) bool {
	var before, after v1.Turn
	message.Decode(have.Detail, &before)
	message.Decode(told.Detail, &after)
	return after.GetStarted() != nil && (before.GetStarted() == nil ||
		after.GetStarted().AsTime().After(before.GetStarted().AsTime()))
}

// Move records that a node has an object of a session from now on. An object that moved meanwhile stays
// as it is.
func (g *Guide) Move(ctx context.Context, o records.Object, node string) (records.Object, error) {
	if o.Node == node {
		return o, nil
	}
	after, err := g.Change(ctx, o, records.Change{Node: &node})
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		o.Node = node
		return o, nil
	}
	return after, err
}

// away reports whether a node does not answer.
func away(err error) bool {
	if err == nil {
		return false
	}
	kind := turnstone.KindOf(api.FromConnect(err))
	return kind == turnstone.KindUnavailable || kind == turnstone.KindDead
}

package ui

import (
	"context"
	"net/url"
	"time"

	"turnstone.dev/turnstone"
)

// A treeOut is what the page draws of a session: a turnstone.Graph without the digests, which are
// most of it.
type treeOut struct {
	Session  nameOut     `json:"session"`
	Turns    []rowOut    `json:"turns"` // the newest first
	Branches []branchOut `json:"branches"`
	Tags     []tagOut    `json:"tags"`
}

type nameOut struct {
	ID   turnstone.SessionID `json:"id"`
	Name string              `json:"name,omitempty"`
}

type rowOut struct {
	ID          turnstone.TurnID     `json:"id"`
	Number      int                  `json:"number"`
	Branch      string               `json:"branch"`
	Parents     []turnstone.TurnID   `json:"parents,omitempty"`
	Title       string               `json:"title,omitempty"`
	Status      turnstone.TurnStatus `json:"status"`
	Result      turnstone.Result     `json:"result,omitempty"`
	Interrupted bool                 `json:"interrupted,omitempty"`
	Started     time.Time            `json:"started"`
	Locked      bool                 `json:"locked,omitempty"`
}

type branchOut struct {
	Name string           `json:"name"`
	Head turnstone.TurnID `json:"head,omitempty"`
}

type tagOut struct {
	Name string           `json:"name"`
	Turn turnstone.TurnID `json:"turn"`
}

// maxTitle bounds a title in bytes; the receipt has all of it.
const maxTitle = 300

func treeOf(g *turnstone.Graph) *treeOut {
	out := &treeOut{Session: nameOut{g.Session.ID, g.Session.Name}, Turns: make([]rowOut, 0, len(g.Turns)),
		Branches: make([]branchOut, 0, len(g.Branches)), Tags: make([]tagOut, 0, len(g.Tags))}
	for _, t := range g.Turns {
		out.Turns = append(out.Turns, rowOut{ID: t.ID, Number: t.Number, Branch: t.Branch,
			Parents: t.Parents, Title: cut(t.Title, maxTitle), Status: t.Status, Result: t.Result,
			Interrupted: t.Interrupted(), Started: t.Started.UTC().Truncate(time.Second), Locked: t.Locked})
	}
	for _, b := range g.Branches {
		out.Branches = append(out.Branches, branchOut{b.Name, b.Head})
	}
	for _, t := range g.Tags {
		out.Tags = append(out.Tags, tagOut{t.Name, t.Turn})
	}
	return out
}

// A startOut is what the page needs for its first picture: one answer instead of three that wait for
// each other.
type startOut struct {
	Sessions sessionsOut `json:"sessions"`
	Of       string      `json:"of,omitempty"` // the session that Tree shows
	Tree     *treeOut    `json:"tree,omitempty"`
	Ref      string      `json:"ref,omitempty"` // the turn of Receipt
	Receipt  *receiptOut `json:"receipt,omitempty"`
}

// start answers with the sessions, the tree of the named session or of the first one, and the receipt
// of the named turn or of the newest one. What fails is left out: the page asks for it again, and
// shows why.
func (s *Server) start(ctx context.Context, q url.Values) (out startOut, err error) {
	if out.Sessions, err = s.sessions(ctx, nil); err != nil {
		return out, err
	}
	session := q.Get("session")
	if session == "" && len(out.Sessions.Sessions) > 0 {
		session = string(out.Sessions.Sessions[0].ID)
	}
	tree, err := s.tree(ctx, url.Values{"session": {session}})
	if err != nil || len(tree.Turns) == 0 {
		return out, ctx.Err()
	}
	out.Of, out.Tree = session, tree
	turn := tree.Turns[0].ID
	for _, t := range tree.Turns {
		if string(t.ID) == q.Get("turn") {
			turn = t.ID
		}
	}
	if q.Get("tab") == "receipt" {
		if r, err := s.receipt(ctx, url.Values{"ref": {string(turn)}}); err == nil {
			out.Ref, out.Receipt = string(turn), &r
		}
	}
	return out, ctx.Err()
}

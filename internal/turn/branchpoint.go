package turn

import (
	"context"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/template"
)

// A branchPoint is where a turn stands in the tree of its session.
type branchPoint struct {
	cs      *repo.ContextStore
	session turnstone.Session
	turn    turnstone.Turn
	parent  *turnstone.Turn      // on whose state it begins; nil: on the template
	replay  bool                 // it is in no session
	state   *turnstone.TurnState // the parent's
	layers  []template.Layer     // of the template, which lie below all turns
}

// take gives the turn id its place, and its number, before anything is started. A
// turn without a session gets one of its own. again is the turn that this one repeats, if any.
func take(ctx context.Context, cs *repo.ContextStore, p *plan.Plan, again *replayOf, id turnstone.TurnID, title string) (*branchPoint, error) {
	at := &branchPoint{cs: cs}
	var err error
	if again != nil {
		at.replay, at.turn = true, turnstone.Turn{ID: id, Parents: again.parent,
			Kind: string(turnstone.TurnKindRun), Title: title}
		return at, at.readParent(ctx)
	}
	if p.Session != "" {
		find := cs.DB.Ensure
		if p.Branch != plan.DefaultBranch {
			find = cs.DB.Find // a session that is new has none but main, and is not to begin with a mistake
		}
		if at.session, err = find(ctx, p.Session); err != nil {
			return nil, err
		}
	}
	at.turn, err = cs.DB.Start(ctx, session.StartTurn{ID: id, Session: at.session.ID,
		Branch: p.Branch, Kind: string(turnstone.TurnKindRun), Title: title})
	if err != nil {
		return nil, err
	}
	at.session.ID = at.turn.Session
	if err := at.readParent(ctx); err != nil {
		at.abandon(ctx)
		return nil, err
	}
	return at, nil
}

func (at *branchPoint) readParent(ctx context.Context) error {
	id := at.turn.Parent()
	if id == "" {
		return nil
	}
	parent, err := at.cs.DB.Turn(ctx, id)
	if err != nil {
		return err
	}
	at.parent = &parent
	at.state, err = at.cs.State(ctx, parent.State)
	return err
}

// below is what the plan of a turn at this place inherits; nil: it begins on its template.
func (at *branchPoint) below() *plan.Below {
	if at.state == nil {
		return nil
	}
	return &plan.Below{Session: at.session.Label(), Image: at.state.Image, Cwd: at.state.Cwd}
}

// abandon gives the place up, for the turn does not begin.
func (at *branchPoint) abandon(ctx context.Context) {
	if !at.replay {
		_ = at.cs.DB.Abandon(context.WithoutCancel(ctx), at.turn.ID)
	}
}

// history yields the turns below the new one, and the template's layers.
func (at *branchPoint) history(ctx context.Context) lowerdir.History {
	return at.cs.History(ctx, at.parent, at.layers)
}

// title is what lists call a document.
func title(doc *document.Document) string {
	if doc.Title != "" {
		return doc.Title
	}
	if i := strings.LastIndexByte(doc.Name, '/'); i >= 0 {
		return doc.Name[i+1:]
	}
	return doc.Name
}

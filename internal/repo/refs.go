package repo

import (
	"context"
	"errors"
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/session"
)

// The forms of a reference to a turn are documented at session.DB.Resolve.

// Sessions lists the sessions, the last used session first.
func (x *Repo) Sessions(ctx context.Context) ([]turnstone.SessionInfo, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	all, err := cs.DB.List(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]turnstone.SessionInfo, 0, len(all))
	for _, s := range all {
		g, err := cs.DB.Graph(ctx, s.ID)
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, sessionInfo(g))
	}
	sortByUse(infos)
	return infos, nil
}

func sessionInfo(g *turnstone.Graph) turnstone.SessionInfo {
	i := turnstone.SessionInfo{Session: g.Session, Turns: len(g.Turns), Used: g.Session.Created,
		Branches: []string{}}
	for _, b := range g.Branches {
		i.Branches = append(i.Branches, b.Name)
	}
	for _, t := range g.Turns {
		if t.Status == turnstone.TurnRunning {
			i.Running++
		}
	}
	if len(g.Turns) > 0 {
		i.Used, i.Title = g.Turns[0].Started, g.Turns[0].Title
	}
	return i
}

// Session returns the description of one session, by its name or ID.
func (x *Repo) Session(ctx context.Context, nameOrID string) (*turnstone.Graph, error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return nil, err
	}
	return cs.DB.Graph(ctx, s.ID)
}

// SessionWithLog is Session with the log of heads of the same moment, oldest entry first.
func (x *Repo) SessionWithLog(ctx context.Context, nameOrID string) (*turnstone.Graph,
	[]session.LoggedHead, error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return nil, nil, err
	}
	return cs.DB.GraphWithHeads(ctx, s.ID)
}

// Log returns a session's turns, the newest first: all of them if ref names a session, otherwise
// the turn that ref names and its ancestors. limit, if positive, is the maximum number of turns.
func (x *Repo) Log(ctx context.Context, ref string, limit int) (*turnstone.Graph, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	if s, err := cs.DB.Find(ctx, ref); err == nil {
		g, err := cs.DB.Graph(ctx, s.ID)
		if err == nil && limit > 0 && len(g.Turns) > limit {
			g.Turns = g.Turns[:limit]
		}
		return g, err
	}
	t, err := cs.DB.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	g, err := cs.DB.Graph(ctx, t.Session)
	if err != nil {
		return nil, err
	}
	g.Turns = g.Turns[:0]
	for a, err := range cs.DB.History(ctx, t) {
		if err != nil {
			return nil, err
		}
		if g.Turns = append(g.Turns, a); len(g.Turns) == limit {
			break
		}
	}
	return g, nil
}

// Fork creates a branch that begins with the turn that ref names.
func (x *Repo) Fork(ctx context.Context, ref, name string) (turnstone.Branch, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return turnstone.Branch{}, err
	}
	if t.State == "" {
		return turnstone.Branch{}, turnstone.NewError("executor.fork", turnstone.KindInvalid,
			fmt.Sprintf("turn %d", t.Number),
			errNoState).WithHint("fork the turn before it: " + ref + "~1")
	}
	return cs.DB.Fork(ctx, t, name)
}

// Tag gives the turn that ref names a permanent name.
func (x *Repo) Tag(ctx context.Context, ref, name string) (turnstone.Tag, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return turnstone.Tag{}, err
	}
	return cs.DB.Tag(ctx, t, name)
}

// Untag removes a tag of a session.
func (x *Repo) Untag(ctx context.Context, nameOrID, tag string) error {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return err
	}
	return cs.DB.Untag(ctx, s.ID, tag)
}

// CreateSession creates a session without turns: see session.DB.Add.
func (x *Repo) CreateSession(ctx context.Context, id turnstone.SessionID, name string) (
	turnstone.Session, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return turnstone.Session{}, err
	}
	return cs.DB.Add(ctx, id, name)
}

// Rename gives a session a name.
func (x *Repo) Rename(ctx context.Context, nameOrID, name string) (turnstone.Session, error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return turnstone.Session{}, err
	}
	return cs.DB.Rename(ctx, s.ID, name)
}

// RemoveSession removes a session. GC frees the space that its turns occupy.
func (x *Repo) RemoveSession(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return turnstone.Session{}, err
	}
	return s, cs.DB.Remove(ctx, s.ID)
}

// RemoveBranch removes a branch of a session. Its turns stay until GC removes them.
func (x *Repo) RemoveBranch(ctx context.Context, nameOrID, branch string) (turnstone.Session,
	error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return s, err
	}
	return s, cs.DB.DeleteBranch(ctx, s.ID, branch)
}

// findSession finds a session by its name or ID.
func (x *Repo) findSession(ctx context.Context,
	nameOrID string) (*ContextStore, turnstone.Session, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, turnstone.Session{}, err
	}
	s, err := cs.DB.Find(ctx, nameOrID)
	return cs, s, err
}

// Resolve finds the turn that ref names, and returns it with the context store of its session's
// domain.
func (x *Repo) Resolve(ctx context.Context, ref string) (*ContextStore, turnstone.Turn, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, turnstone.Turn{}, err
	}
	return cs.Resolve(ctx, ref)
}

// ResolveState finds the state of the turn that ref names.
func (x *Repo) ResolveState(ctx context.Context,
	ref string) (*ContextStore, turnstone.Turn, *turnstone.TurnState, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return nil, t, nil, err
	}
	st, err := cs.StateOf(ctx, t)
	return cs, t, st, err
}

// StateOf returns the state that t left; an error if it left none.
func (cs *ContextStore) StateOf(ctx context.Context, t turnstone.Turn) (*turnstone.TurnState,
	error) {
	if t.State != "" {
		return cs.State(ctx, t.State)
	}
	err := turnstone.NewError("executor.state", turnstone.KindNotFound,
		fmt.Sprintf("turn %d (%s)", t.Number, t.ID),
		errNoState).WithHint("look at the turn before it, with ~1")
	if t.Status == turnstone.TurnRunning {
		err.Err, err.Hint = errors.New("is still running"), "wait for it"
	}
	return nil, err
}

package repo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/session"
)

// The forms of a reference to a turn are documented at session.DB.Resolve.

// A SessionInfo is one session in a list.
type SessionInfo struct {
	session.Session
	Turns    int       `json:"turns"`
	Running  int       `json:"running"`
	Branches []string  `json:"branches"`
	Used     time.Time `json:"used"` // start of its newest turn, or its creation
	Title    string    `json:"title,omitempty"`
}

// Sessions lists the sessions, the last used session first.
func (x *Repo) Sessions(ctx context.Context) ([]SessionInfo, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	all, err := cs.DB.List(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]SessionInfo, 0, len(all))
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

func sessionInfo(g *session.Graph) SessionInfo {
	i := SessionInfo{Session: g.Session, Turns: len(g.Turns), Used: g.Session.Created,
		Branches: []string{}}
	for _, b := range g.Branches {
		i.Branches = append(i.Branches, b.Name)
	}
	for _, t := range g.Turns {
		if t.Status == session.StatusRunning {
			i.Running++
		}
	}
	if len(g.Turns) > 0 {
		i.Used, i.Title = g.Turns[0].Started, g.Turns[0].Title
	}
	return i
}

// Session returns the description of one session, by its name or ID.
func (x *Repo) Session(ctx context.Context, nameOrID string) (*session.Graph, error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return nil, err
	}
	return cs.DB.Graph(ctx, s.ID)
}

// Log returns a session's turns, the newest first: all of them if ref names a session, otherwise
// the turn that ref names and its ancestors. limit, if positive, is the maximum number of turns.
func (x *Repo) Log(ctx context.Context, ref string, limit int) (*session.Graph, error) {
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
func (x *Repo) Fork(ctx context.Context, ref, name string) (session.Branch, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return session.Branch{}, err
	}
	if t.State == "" {
		return session.Branch{}, turnstone.NewError("executor.fork", turnstone.KindInvalid,
			fmt.Sprintf("turn %d", t.Number),
			errNoState).WithHint("fork the turn before it: " + ref + "~1")
	}
	return cs.DB.Fork(ctx, t, name)
}

// Tag gives the turn that ref names a permanent name.
func (x *Repo) Tag(ctx context.Context, ref, name string) (session.Tag, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return session.Tag{}, err
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

// Rename gives a session a name.
func (x *Repo) Rename(ctx context.Context, nameOrID, name string) (session.Session, error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return session.Session{}, err
	}
	return cs.DB.Rename(ctx, s.ID, name)
}

// RemoveSession removes a session. GC frees the space that its turns occupy.
func (x *Repo) RemoveSession(ctx context.Context, nameOrID string) (session.Session, error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return session.Session{}, err
	}
	return s, cs.DB.Remove(ctx, s.ID)
}

// RemoveBranch removes a branch of a session. Its turns stay until GC removes them.
func (x *Repo) RemoveBranch(ctx context.Context, nameOrID, branch string) (session.Session, error) {
	cs, s, err := x.findSession(ctx, nameOrID)
	if err != nil {
		return s, err
	}
	return s, cs.DB.DeleteBranch(ctx, s.ID, branch)
}

// findSession finds a session by its name or ID.
func (x *Repo) findSession(ctx context.Context,
	nameOrID string) (*ContextStore, session.Session, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, session.Session{}, err
	}
	s, err := cs.DB.Find(ctx, nameOrID)
	return cs, s, err
}

// Resolve finds the turn that ref names.
func (x *Repo) Resolve(ctx context.Context, ref string) (*ContextStore, session.Turn, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return nil, session.Turn{}, err
	}
	t, err := cs.DB.Resolve(ctx, ref)
	return cs, t, err
}

// ResolveState finds the state of the turn that ref names.
func (x *Repo) ResolveState(ctx context.Context,
	ref string) (*ContextStore, session.Turn, *State, error) {
	cs, t, err := x.Resolve(ctx, ref)
	if err != nil {
		return nil, t, nil, err
	}
	st, err := cs.StateOf(ctx, t)
	return cs, t, st, err
}

// StateOf returns the state that t left; an error if it left none.
func (cs *ContextStore) StateOf(ctx context.Context, t session.Turn) (*State, error) {
	if t.State != "" {
		return cs.State(ctx, t.State)
	}
	err := turnstone.NewError("executor.state", turnstone.KindNotFound,
		fmt.Sprintf("turn %d (%s)", t.Number, t.ID),
		errNoState).WithHint("look at the turn before it, with ~1")
	if t.Status == session.StatusRunning {
		err.Err, err.Hint = errors.New("is still running"), "wait for it"
	}
	return nil, err
}

package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
)

// A branchPoint is where a turn stands in the tree of its session.
type branchPoint struct {
	cs      *contextStore
	session session.Session
	turn    session.Turn
	parent  *session.Turn    // on whose state it begins; nil: on the template
	replay  bool             // it is in no session
	state   *State           // the parent's
	layers  []template.Layer // of the template, which lie below all turns
}

// take gives the turn id its place, and its number, before anything is started. A
// turn without a session gets one of its own.
func (cs *contextStore) take(ctx context.Context, p *plan, id turnstone.TurnID, title string) (*branchPoint, error) {
	at := &branchPoint{cs: cs}
	var err error
	if p.replay != nil {
		at.replay, at.turn = true, session.Turn{ID: id, Parents: p.replay.parent, Kind: string(KindRun), Title: title}
		return at, at.readParent(ctx)
	}
	if p.session != "" {
		find := cs.db.Ensure
		if p.branch != DefaultBranch {
			find = cs.db.Find // a session that is new has none but main, and is not to begin with a mistake
		}
		if at.session, err = find(ctx, p.session); err != nil {
			return nil, err
		}
	}
	at.turn, err = cs.db.Start(ctx, session.StartTurn{ID: id, Session: at.session.ID, Branch: p.branch, Kind: string(KindRun), Title: title})
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
	parent, err := at.cs.db.Turn(ctx, id)
	if err != nil {
		return err
	}
	at.parent = &parent
	at.state, err = at.cs.state(ctx, parent.State)
	return err
}

// inherit answers what p leaves open with what the parent left: the template and
// the working directory.
func (at *branchPoint) inherit(p *plan, req Request) error {
	ts := template.NewStore(at.cs.templates.dir)
	if at.state == nil {
		return p.onTemplate(ts)
	}
	if p.asked != "" && !template.SameImage(p.asked, at.state.Image) {
		return turnstone.Errorf("executor.plan", turnstone.KindInvalid, "image "+p.asked,
			"session %s is on %s", at.session.Label(), at.state.Image).
			WithHint("leave the image out, or begin another session")
	}
	if p.image = at.state.Image; p.authority != nil {
		p.anonymous = p.authority.strangersState(p.image, ts.Known)
	}
	if err := p.onTemplate(ts); err != nil {
		return err
	}
	if req.Document.Front.Cwd == "" && p.cwd != at.state.Cwd {
		p.cwd = at.state.Cwd
		return p.files(req)
	}
	return nil
}

// abandon gives the place up, for the turn does not begin.
func (at *branchPoint) abandon(ctx context.Context) {
	if !at.replay {
		_ = at.cs.db.Abandon(context.WithoutCancel(ctx), at.turn.ID)
	}
}

// history yields the turns below the new one, as the images of a sandbox span them:
// from parent to parent, and right behind a merge the turns that it brought in. So
// whatever stands behind a turn is all that the turn itself had below it. Of turns
// that a merge brought in only /context has something; their files came with the merge.
// The template's layers come last, so that all that stands on it has their images in common.
func (at *branchPoint) history(ctx context.Context) lowerdir.History {
	return func(yield func(lowerdir.Item, error) bool) {
		more := true
		each := func(item lowerdir.Item, err error) bool {
			more = more && yield(item, err)
			return more
		}
		for t := at.parent; t != nil && more; {
			below, err := at.yieldTurn(ctx, t, each)
			if err != nil {
				each(lowerdir.Item{}, err)
				return
			}
			t = below
		}
		for i := len(at.layers) - 1; i >= 0 && more; i-- {
			if i == 0 || at.layers[i].Tree != at.layers[i-1].Tree {
				each(lowerdir.Item{Key: at.layers[i].Tree.Root, Tree: at.layers[i].Tree}, nil)
			}
		}
	}
}

// yieldTurn yields t and what it merged, and returns the turn below; nil at the end.
func (at *branchPoint) yieldTurn(ctx context.Context, t *session.Turn, yield func(lowerdir.Item, error) bool) (below *session.Turn, err error) {
	st, err := at.cs.state(ctx, t.State)
	if err != nil {
		return nil, err
	}
	item := at.item(ctx, *t)
	item.Tree = st.Tree
	if !yield(item, nil) || len(t.Parents) == 0 {
		return nil, nil
	}
	next, err := at.cs.db.Turn(ctx, t.Parents[0])
	if err != nil || len(t.Parents) == 1 {
		return &next, err
	}
	files, err := at.treeOf(ctx, next.ID)
	if err != nil {
		return nil, err
	}
	merged, err := at.merged(ctx, next, t.Parents[1])
	if err != nil {
		return nil, err
	}
	for _, m := range merged {
		item := at.item(ctx, m)
		item.Tree, item.Side = files, true
		if !yield(item, nil) {
			return nil, nil
		}
	}
	return &next, nil
}

// merged returns the ancestors of the turn side, itself first, that are none of ours.
func (at *branchPoint) merged(ctx context.Context, ours session.Turn, side turnstone.TurnID) ([]session.Turn, error) {
	have := map[turnstone.TurnID]bool{}
	for t, err := range at.cs.db.History(ctx, ours) {
		if err != nil {
			return nil, err
		}
		have[t.ID] = true
	}
	theirs, err := at.cs.db.Turn(ctx, side)
	if err != nil {
		return nil, err
	}
	var all []session.Turn
	for t, err := range at.cs.db.History(ctx, theirs) {
		if err != nil {
			return nil, err
		}
		if !have[t.ID] {
			all = append(all, t)
		}
	}
	return all, nil
}

// treeOf returns the files that the turn id left; for no turn the zero Ref.
func (at *branchPoint) treeOf(ctx context.Context, id turnstone.TurnID) (tree.Ref, error) {
	if id == "" {
		return tree.Ref{}, nil
	}
	t, err := at.cs.db.Turn(ctx, id)
	if err != nil {
		return tree.Ref{}, err
	}
	st, err := at.cs.state(ctx, t.State)
	if err != nil {
		return tree.Ref{}, err
	}
	return st.Tree, nil
}

// item is what the turn t puts into /context.
func (at *branchPoint) item(ctx context.Context, t session.Turn) lowerdir.Item {
	line := fmt.Sprintf("[turn %d](turns/%d/receipt.md) `%s` on %s, %s: %s", t.Number, t.Number, t.ID, t.Branch, t.Result, t.Title)
	return lowerdir.Item{Key: t.Record, Number: t.Number, Line: oneLine(line), Context: func(ctx context.Context) ([]lowerdir.File, error) {
		rec, err := at.cs.record(ctx, t)
		if err != nil {
			return nil, err
		}
		return contextFiles(rec), nil
	}}
}

// contextFiles are the files of one turn in /context.
func contextFiles(rec *Record) []lowerdir.File {
	dir := fmt.Sprintf("turns/%d/", rec.Number)
	mtime := tree.Time{Sec: rec.Started.Unix()}
	files := []lowerdir.File{{Path: dir + "receipt.md", Content: rec.Receipt, MTime: mtime}}
	for i, step := range rec.Steps {
		for name, c := range map[string]*tree.Content{"stdout": step.Stdout, "stderr": step.Stderr} {
			if c != nil {
				files = append(files, lowerdir.File{Path: fmt.Sprintf("%sstep-%d.%s", dir, i+1, name), Content: *c, MTime: mtime})
			}
		}
	}
	return files
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

// errNoState is the cause when a turn left nothing that another could begin on.
var errNoState = errors.New("left no state")

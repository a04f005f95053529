package repo

import (
	"context"
	"fmt"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/store/tree"
)

// History yields parent and the turns below it, in the order of a sandbox's images: from parent to
// parent, and after a merge the turns that the merge added. The items after a turn are therefore
// exactly those below it. The items of turns that a merge added have files in /context only,
// because the merge has their other files. The template's layers come last, so that all turns on
// the template share their images.
func (cs *ContextStore) History(ctx context.Context, parent *turnstone.Turn,
	layers []turnstone.TemplateLayer) lowerdir.History {
	return func(yield func(lowerdir.Item, error) bool) {
		more := true
		each := func(item lowerdir.Item, err error) bool {
			more = more && yield(item, err)
			return more
		}
		for t := parent; t != nil && more; {
			below, err := cs.yieldTurn(ctx, t, each)
			if err != nil {
				each(lowerdir.Item{}, err)
				return
			}
			t = below
		}
		for i := len(layers) - 1; i >= 0 && more; i-- {
			if i == 0 || layers[i].Tree != layers[i-1].Tree {
				each(lowerdir.Item{Key: layers[i].Tree.Root, Tree: layers[i].Tree}, nil)
			}
		}
	}
}

// yieldTurn yields t and the turns that it merged, and returns the turn below; nil at the end.
func (cs *ContextStore) yieldTurn(ctx context.Context, t *turnstone.Turn,
	yield func(lowerdir.Item, error) bool) (below *turnstone.Turn, err error) {
	st, err := cs.State(ctx, t.State)
	if err != nil {
		return nil, err
	}
	item := cs.item(*t)
	item.Tree = st.Tree
	if !yield(item, nil) || len(t.Parents) == 0 {
		return nil, nil
	}
	next, err := cs.Turn(ctx, t.Parents[0])
	if err != nil || len(t.Parents) == 1 {
		return &next, err
	}
	files, err := cs.TreeOf(ctx, next.ID)
	if err != nil {
		return nil, err
	}
	merged, err := cs.merged(ctx, next, t.Parents[1])
	if err != nil {
		return nil, err
	}
	for _, m := range merged {
		item := cs.item(m)
		item.Tree, item.Side = files, true
		if !yield(item, nil) {
			return nil, nil
		}
	}
	return &next, nil
}

// merged returns the turn side and its ancestors, except those in the history of ours.
func (cs *ContextStore) merged(ctx context.Context, ours turnstone.Turn,
	side turnstone.TurnID) ([]turnstone.Turn, error) {
	have := map[turnstone.TurnID]bool{}
	for t, err := range cs.DB.History(ctx, ours) {
		if err != nil {
			return nil, err
		}
		have[t.ID] = true
	}
	theirs, err := cs.DB.Turn(ctx, side)
	if err != nil {
		return nil, err
	}
	var all []turnstone.Turn
	for t, err := range cs.DB.History(ctx, theirs) {
		if err != nil {
			return nil, err
		}
		if !have[t.ID] {
			all = append(all, t)
		}
	}
	return all, nil
}

// TreeOf returns the files that the turn id left; the zero Ref without a turn.
func (cs *ContextStore) TreeOf(ctx context.Context, id turnstone.TurnID) (turnstone.TreeRef,
	error) {
	if id == "" {
		return turnstone.TreeRef{}, nil
	}
	t, err := cs.Turn(ctx, id)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	st, err := cs.State(ctx, t.State)
	if err != nil {
		return turnstone.TreeRef{}, err
	}
	return st.Tree, nil
}

// item returns the files of the turn t in /context.
func (cs *ContextStore) item(t turnstone.Turn) lowerdir.Item {
	line := fmt.Sprintf("[turn %d](turns/%d/receipt.md) `%s` on %s, %s: %s", t.Number, t.Number,
		t.ID, t.Branch, t.Result, t.Title)
	return lowerdir.Item{Key: t.Record, Number: t.Number, Line: brief.Line(line),
		Context: func(ctx context.Context) ([]lowerdir.File, error) {
			rec, err := cs.Record(ctx, t)
			if err != nil {
				return nil, err
			}
			return contextFiles(rec), nil
		}}
}

// contextFiles are the files of one turn in /context.
func contextFiles(rec *turnstone.TurnRecord) []lowerdir.File {
	dir := fmt.Sprintf("turns/%d/", rec.Number)
	mtime := tree.Time{Sec: rec.Started.Unix()}
	files := []lowerdir.File{{Path: dir + "receipt.md", Content: rec.Receipt, MTime: mtime}}
	for i, step := range rec.Steps {
		for name, c := range map[string]*turnstone.Content{"stdout": step.Stdout,
			"stderr": step.Stderr} {
			if c != nil {
				files = append(files,
					lowerdir.File{Path: fmt.Sprintf("%sstep-%d.%s", dir, i+1, name), Content: *c,
						MTime: mtime})
			}
		}
	}
	return files
}

// HomeKey returns the key of the item for the turn with a record, with a home in its files: of
// History's items, which have no homes. An empty record stands for a template.
func HomeKey(record, home turnstone.Digest) turnstone.Digest {
	return turnstone.DigestBytes([]byte("turnstone home 1\n" + string(record) + "\n" + string(home)))
}

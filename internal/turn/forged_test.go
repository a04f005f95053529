package turn

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// leaves commits a turn whose state has that tree, whatever the tree says.
func (p *past) leaves(s session.Session, make func(w tree.Writer) tree.Ref) {
	p.t.Helper()
	ctx := p.t.Context()
	t := ok[session.Turn](p.t)(p.cs.DB.Start(ctx, session.StartTurn{Session: s.ID, Branch: "main", Kind: string(repo.KindRun), Title: "a turn"}))
	batch, err := p.cs.Store.Begin(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = batch.Close() }()
	put := func(v any) turnstone.Digest {
		return ok[turnstone.Digest](p.t)(batch.Put(ctx, ok[[]byte](p.t)(json.Marshal(v))))
	}
	state := put(repo.State{Format: repo.StateFormat, Image: cmp.Or(p.image, "base"), Cwd: "/", Tree: make(batch)})
	text := ok[tree.Content](p.t)(batch.PutContent(ctx, strings.NewReader("x"), 1))
	record := put(repo.Record{Format: repo.RecordFormat, ID: t.ID, Session: t.Session, Number: t.Number, Branch: "main", Parents: t.Parents, Kind: repo.KindRun,
		Image: cmp.Or(p.image, "base"), Result: turnstone.ResultPassed, State: state, Receipt: text, Document: text})
	if err := batch.Flush(ctx); err != nil {
		p.t.Fatal(err)
	}
	var head *turnstone.TurnID
	if id := t.Parent(); id != "" {
		head = &id
	}
	if _, _, err = p.cs.DB.Finish(ctx, session.Finish{Turn: t.ID, Result: turnstone.ResultPassed, Record: record, State: state, MoveBranch: true, ExpectedHead: head}); err != nil {
		p.t.Fatal(err)
	}
}

// TestForgedTrees: a state whose tree says what is not so is found by fsck, and no
// session that has one is imported.
func TestForgedTrees(t *testing.T) {
	ctx := context.Background()
	other := turnstone.DigestBytes([]byte("of other files"))
	root := func(w tree.Writer, r *tree.Root) tree.Ref { return ok[tree.Ref](t)(tree.PutRoot(ctx, w, r)) }
	edit := func(w tree.Writer, ref tree.Ref, f func(r *tree.Root)) tree.Ref {
		r := ok[*tree.Root](t)(tree.GetRoot(ctx, w, ref))
		f(r)
		return root(w, r)
	}
	forge := map[string]func(w tree.Writer, good tree.Ref) tree.Ref{
		"the tree's FS hash": func(_ tree.Writer, good tree.Ref) tree.Ref { return tree.Ref{Root: good.Root, Hash: other} },
		"the top's FS hash": func(w tree.Writer, good tree.Ref) tree.Ref {
			return edit(w, good, func(r *tree.Root) { r.Hash = other })
		},
		"a link to nothing": func(w tree.Writer, good tree.Ref) tree.Ref {
			return edit(w, good, func(r *tree.Root) { r.Links = []tree.LinkGroup{{"/d/a", "/none"}} })
		},
		"a link to another": func(w tree.Writer, good tree.Ref) tree.Ref {
			return edit(w, good, func(r *tree.Root) { r.Links = []tree.LinkGroup{{"/d/a", "/d/b"}} })
		},
		"a directory's FS hash": func(w tree.Writer, good tree.Ref) tree.Ref {
			return edit(w, good, func(r *tree.Root) {
				d := ok[tree.Directory](t)(tree.GetDirectory(ctx, w, r.Tree))
				d[0].Hash = other
				var err error
				if r.Tree, r.Hash, err = tree.PutDirectory(ctx, w, d); err != nil {
					t.Fatal(err)
				}
			})
		},
	}
	for what, lie := range forge {
		p := newPast(t)
		s := p.session("story")
		var good tree.Ref
		p.leaves(s, func(w tree.Writer) tree.Ref {
			good = treetest.Make(t, w, texts(map[string]string{"/d/a": "one", "/d/b": "two"})...)
			return good
		})
		if r := ok[*repo.FsckReport](t)(p.x.Fsck(ctx)); !r.OK() {
			t.Errorf("%s: before: %+v", what, r.Problems)
		}
		p.leaves(s, func(w tree.Writer) tree.Ref { return lie(w, good) })
		r := ok[*repo.FsckReport](t)(p.x.Fsck(ctx))
		if r.OK() || !strings.HasPrefix(r.Problems[0].Where, "turn 2 ") {
			t.Errorf("%s: fsck says %+v", what, r.Problems)
		}
		var file bytes.Buffer
		if _, err := p.x.Export(ctx, ExportRequest{Session: "story"}, &file); err != nil {
			if turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Errorf("%s: export: %v", what, err)
			}
			continue // it does not leave this place at all
		}
		q := newPast(t)
		if rep, err := q.x.Import(ctx, ImportRequest{}, &file); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: import: %+v, %v", what, rep, err)
		}
		if all := ok[[]repo.SessionInfo](t)(q.x.Sessions(ctx)); len(all) != 0 {
			t.Errorf("%s: left %v", what, all)
		}
	}
}

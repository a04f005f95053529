package bundle

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestForgedTrees checks that fsck finds a state with a forged tree, and that no session with such
// a state is imported.
func TestForgedTrees(t *testing.T) {
	ctx := context.Background()
	other := turnstone.DigestBytes([]byte("of other files"))
	root := func(w tree.Writer, r *tree.Root) turnstone.TreeRef {
		return ok[turnstone.TreeRef](t)(tree.PutRoot(ctx, w, r))
	}
	edit := func(w tree.Writer, ref turnstone.TreeRef, f func(r *tree.Root)) turnstone.TreeRef {
		r := ok[*tree.Root](t)(tree.GetRoot(ctx, w, ref))
		f(r)
		return root(w, r)
	}
	forge := map[string]func(w tree.Writer, good turnstone.TreeRef) turnstone.TreeRef{
		"the tree's FS hash": func(_ tree.Writer, good turnstone.TreeRef) turnstone.TreeRef {
			return turnstone.TreeRef{Root: good.Root, Hash: other}
		},
		"the top's FS hash": func(w tree.Writer, good turnstone.TreeRef) turnstone.TreeRef {
			return edit(w, good, func(r *tree.Root) { r.Hash = other })
		},
		"a link to nothing": func(w tree.Writer, good turnstone.TreeRef) turnstone.TreeRef {
			return edit(w, good, func(r *tree.Root) {
				r.Links = []tree.LinkGroup{{"/d/a", "/none"}}
			})
		},
		"a link to another": func(w tree.Writer, good turnstone.TreeRef) turnstone.TreeRef {
			return edit(w, good, func(r *tree.Root) {
				r.Links = []tree.LinkGroup{{"/d/a", "/d/b"}}
			})
		},
		"a directory's FS hash": func(w tree.Writer, good turnstone.TreeRef) turnstone.TreeRef {
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
		p := repotest.New(t)
		s := p.Session("story")
		var good turnstone.TreeRef
		p.Leaves(s, func(w tree.Writer) turnstone.TreeRef {
			good = treetest.Make(t, w,
				treetest.Texts(map[string]string{"/d/a": "one", "/d/b": "two"})...)
			return good
		})
		if r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx)); !r.OK() {
			t.Errorf("%s: before: %+v", what, r.Problems)
		}
		p.Leaves(s, func(w tree.Writer) turnstone.TreeRef { return lie(w, good) })
		r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx))
		if r.OK() || !strings.HasPrefix(r.Problems[0].Where, "turn 2 ") {
			t.Errorf("%s: fsck says %+v", what, r.Problems)
		}
		var file bytes.Buffer
		if _, err := host(p.Repo).Export(ctx, ExportRequest{Session: "story"}, &file); err != nil {
			if turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Errorf("%s: export: %v", what, err)
			}
			continue // the forged tree is not exported at all
		}
		q := repotest.New(t)
		rep, err := host(q.Repo).Import(ctx, ImportRequest{}, &file)
		if turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("%s: import: %+v, %v", what, rep, err)
		}
		if all := ok[[]turnstone.SessionInfo](t)(q.Repo.Sessions(ctx)); len(all) != 0 {
			t.Errorf("%s: left %v", what, all)
		}
	}
}

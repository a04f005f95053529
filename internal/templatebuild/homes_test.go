package templatebuild

import (
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/homes"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/repo/templatefiles"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
)

// leaveHome makes a home of a tree, which a turn without a state leaves.
func leaveHome(t *testing.T, p *repotest.Past, name string,
	plant func(tree.Writer) turnstone.TreeRef) {
	t.Helper()
	ctx := t.Context()
	b := ok[*store.Batch](t)(p.CS.Store.Begin(ctx))
	defer func() { _ = b.Close() }()
	ref := plant(b)
	if err := b.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	s := p.Session("user")
	turn := ok[turnstone.Turn](t)(p.CS.DB.Start(ctx, session.StartTurn{Session: s.ID}))
	_, _, err := p.CS.DB.Finish(ctx, session.Finish{Turn: turn.ID, Result: "passed",
		Home: &session.HomeUse{Turn: turn.ID, Name: name, Began: ref, Ended: ref, New: true}})
	if err != nil {
		t.Fatal(err)
	}
}

// whole reports what is damaged in the store, of which homes are a part.
func whole(t *testing.T, p *repotest.Past) {
	t.Helper()
	fresh := repotest.Open(p.Repo.Dir) // knows of no image that was there
	defer func() { _ = fresh.Close() }()
	if _, err := fresh.GC(t.Context(), turnstone.GCRequest{KeepUnreachable: 1}); err != nil {
		t.Error(err)
	}
	if r := ok[*turnstone.FsckReport](t)(fresh.Fsck(t.Context())); !r.OK() {
		t.Errorf("%+v", r.Problems)
	}
}

// TestTemplateOfAHome: a home does not keep a template, whose files in it are copied first.
//
//testrun:user
func TestTemplateOfAHome(t *testing.T) {
	p := repotest.New(t)
	leaveHome(t, p, "me", p.Template("mine", map[string]string{"/own": "only here"}))
	time.Sleep(2 * templatefiles.LookAgain) // what was not there a moment ago is taken for not there
	gone, err := Remove(t.Context(), p.Repo, repotest.Templates(p.Repo), Removal{Name: "mine"})
	if err != nil || len(gone) > 0 {
		t.Fatalf("%+v, %v", gone, err)
	}
	whole(t, p)
}

// TestPruneKeepsFilesOfHomes: a build of no known template stays while a home has files of it.
func TestPruneKeepsFilesOfHomes(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	leaveHome(t, p, "me", p.Template("mine", map[string]string{"/own": "only here"}))
	p.TemplateOf("mine", "env = { NEW = \"spec\" }", map[string]string{"/own": "another"})
	time.Sleep(2 * templatefiles.LookAgain)
	prune := func() *turnstone.TemplatePruned {
		return ok[*turnstone.TemplatePruned](t)(Prune(ctx, p.Repo, repotest.Templates(p.Repo),
			PruneRequest{}))
	}
	if r := prune(); len(r.Builds) != 0 || len(r.Stays) != 1 ||
		r.Stays[0].Why != "has files of homes that are nowhere else" {
		t.Fatalf("%+v", r)
	}
	whole(t, p)
	if err := homes.In(p.Repo).Remove(ctx, "me"); err != nil {
		t.Fatal(err)
	}
	if r := prune(); len(r.Builds) != 1 || len(r.Stays) != 0 {
		t.Fatalf("%+v", r)
	}
	whole(t, p)
}

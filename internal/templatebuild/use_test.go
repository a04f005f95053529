package templatebuild

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/copyout"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/repo/templatefiles"
	"turnstone.dev/turnstone/internal/store/session"
)

// TestTemplateThatIsNeeded: files that are only in a template's image are not taken
// from the sessions that have them.
func TestTemplateThatIsNeeded(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	large := repotest.Random(2<<20, 3)
	files := p.Template("mine", map[string]string{"/etc/own": "only here", "/etc/both": "in two",
		"/large": large})
	others := p.Template("other", map[string]string{"/etc/both": "in two", "/x": "of the other"})
	p.Template("unused", map[string]string{"/y": "of none"})
	p.Leaves(p.Session("on-mine"), files)
	p.Leaves(p.Session("on-other"), others)
	time.Sleep(2 * templatefiles.LookAgain) // what was not there a moment ago is taken for not there
	remove := func(r Removal) error {
		gone, err := Remove(ctx, p.Repo, repotest.Templates(p.Repo), r)
		if len(gone) > 0 {
			t.Errorf("sessions went with it: %+v", gone)
		}
		return err
	}
	if err := remove(Removal{Name: "unused"}); err != nil {
		t.Errorf("what nobody needs: %v", err)
	}
	err := remove(Removal{Name: "mine"})
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "on-mine") || strings.Contains(err.Error(), "on-other") ||
		!strings.Contains(turnstone.HintOf(err), "--keep-files") {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	use := ok[*templateUse](t)(findUse(ctx, p.Repo, repotest.Templates(p.Repo), "mine"))
	if len(use.Sessions) != 1 || use.Files != 2 || use.Bytes != int64(len("only here")+len(large)) {
		t.Errorf("%+v", use)
	}
	if r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx)); !r.OK() {
		t.Fatalf("%+v", r.Problems)
	}
	if err := remove(Removal{Name: "mine", Keep: true}); err != nil {
		t.Fatal(err)
	}
	if names := ok[[]string](t)(repotest.Templates(p.Repo).Names()); strings.Contains(strings.Join(names, " "), "mine") {
		t.Errorf("it is still there: %v", names)
	}
	fresh := repotest.Open(p.Repo.Dir) // knows of no image that was there
	defer func() { _ = fresh.Close() }()
	for _, x := range []*repo.Repo{p.Repo, fresh} {
		if _, err := x.GC(ctx, turnstone.GCRequest{KeepUnreachable: 1}); err != nil {
			t.Error(err)
		}
		if r := ok[*turnstone.FsckReport](t)(x.Fsck(ctx)); !r.OK() {
			t.Errorf("files were lost: %+v", r.Problems)
		}
		dest := filepath.Join(t.TempDir(), "large")
		if err := copyout.Copy(ctx, x, "on-mine", "/large", dest, nil); err != nil {
			t.Error(err)
		} else if b := ok[[]byte](t)(os.ReadFile(dest)); string(b) != large {
			t.Error("another file came out")
		}
	}
	// By force it is gone, in a process too that had it open, and that is said.
	if err := remove(Removal{Name: "other", Force: true}); err != nil {
		t.Fatal(err)
	}
	r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx))
	if r.OK() || len(r.Problems) != 2 || !strings.Contains(r.Problems[0].Where, "/etc/both") ||
		!strings.Contains(r.Problems[1].Where, "/x") {
		t.Errorf("%+v", r.Problems)
	}
	err = copyout.Copy(ctx, p.Repo, "on-other", "/x", filepath.Join(t.TempDir(), "x"), nil)
	if turnstone.KindOf(err) != turnstone.KindNotFound &&
		turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("%v", err)
	}
}

// TestTemplateOfAnonymousSessions: what only anonymous sessions need is no reason to keep
// a template; they go with it, so that nothing damaged is left.
func TestTemplateOfAnonymousSessions(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	files := p.Template("mine", map[string]string{"/etc/own": "only here"})
	nameless, tagged, named := p.Session(""), p.Session(""), p.Session("named")
	for _, s := range []turnstone.Session{nameless, tagged, named} {
		p.Leaves(s, files)
	}
	p.Leaves(p.Session(""), p.Template("other", map[string]string{"/x": "of the other"}))
	g := ok[*turnstone.Graph](t)(p.Repo.Session(ctx, string(tagged.ID)))
	ok[turnstone.Tag](t)(p.Repo.Tag(ctx, string(g.Turns[0].ID), "keep"))
	time.Sleep(2 * templatefiles.LookAgain) // what was not there a moment ago is taken for not there
	for _, s := range []turnstone.Session{named, tagged} {
		gone, err := Remove(ctx, p.Repo, repotest.Templates(p.Repo), Removal{Name: "mine"})
		if turnstone.KindOf(err) != turnstone.KindUnavailable ||
			!strings.Contains(err.Error(), s.Label()) ||
			strings.Contains(err.Error(), nameless.Label()) || len(gone) > 0 {
			t.Errorf("%+v, %v", gone, err)
		}
		ok[turnstone.Session](t)(p.Repo.RemoveSession(ctx, string(s.ID)))
	}
	// A turn of it that runs keeps it.
	runs := ok[turnstone.Turn](t)(p.CS.DB.Start(ctx, session.StartTurn{Session: nameless.ID,
		Kind: turnstone.TurnKindRun}))
	if gone, err := Remove(ctx, p.Repo, repotest.Templates(p.Repo),
		Removal{Name: "mine"}); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		len(gone) > 0 {
		t.Errorf("%+v, %v", gone, err)
	}
	if err := p.CS.DB.Abandon(ctx, runs.ID); err != nil {
		t.Fatal(err)
	}
	gone := ok[[]turnstone.Session](t)(Remove(ctx, p.Repo, repotest.Templates(p.Repo),
		Removal{Name: "mine"}))
	if len(gone) != 1 || gone[0].ID != nameless.ID {
		t.Errorf("%+v", gone)
	}
	_, err := p.Repo.Session(ctx, string(nameless.ID))
	if turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%v", err)
	}
	if all := ok[[]turnstone.SessionInfo](t)(p.Repo.Sessions(ctx)); len(all) != 1 {
		t.Errorf("%+v", all)
	}
	if r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx)); !r.OK() {
		t.Errorf("%+v", r.Problems)
	}
	// With its files copied nobody has to go.
	if gone, err := Remove(ctx, p.Repo, repotest.Templates(p.Repo),
		Removal{Name: "other", Keep: true}); err != nil || len(gone) > 0 {
		t.Errorf("%+v, %v", gone, err)
	}
	if r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx)); !r.OK() || r.Sessions != 1 {
		t.Errorf("%+v", r)
	}
}

func ok[T any](t testing.TB) func(v T, err error) T { return repotest.OK[T](t) }

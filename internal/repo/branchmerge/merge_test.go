package branchmerge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// A mergeWorld is a session whose turns are made without machines.
type mergeWorld struct {
	*repotest.Past
	s turnstone.Session
}

func newMergeWorld(t *testing.T) *mergeWorld {
	p := repotest.New(t)
	return &mergeWorld{p, p.Session("research")}
}

// turn commits a turn on a branch, with these files and this environment.
func (w *mergeWorld) turn(branch string, files map[string]string, env ...string) turnstone.Turn {
	w.T.Helper()
	return w.Commit(w.s, branch, func(b *store.Batch,
		rec *turnstone.TurnRecord) turnstone.TurnState {
		rec.Template = turnstone.DigestBytes([]byte("template"))
		return turnstone.TurnState{Image: "base", Tree: treetest.Make(w.T, b,
			treetest.Texts(files)...), Env: env, Cwd: "/workspace"}
	})
}

func (w *mergeWorld) must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

func (w *mergeWorld) fork(from turnstone.Turn, name string) {
	w.T.Helper()
	_, err := w.CS.DB.Fork(w.T.Context(), from, name)
	w.must(err)
}

func (w *mergeWorld) merge(req Request) *turnstone.MergeReport {
	w.T.Helper()
	rep, err := Merge(w.T.Context(), w.Repo, req)
	w.must(err)
	return rep
}

func (w *mergeWorld) file(ref, name string) string {
	w.T.Helper()
	_, _, st, err := w.Repo.ResolveState(w.T.Context(), ref)
	w.must(err)
	e, err := tree.Lookup(w.T.Context(), w.CS.Store, st.Tree, name)
	w.must(err)
	b, err := w.CS.Read(w.T.Context(), e.Content, 1<<20)
	w.must(err)
	return string(b)
}

func (w *mergeWorld) turns() int {
	w.T.Helper()
	g, err := w.CS.DB.Graph(w.T.Context(), w.s.ID)
	w.must(err)
	return len(g.Turns)
}

// files returns a folder in which file a is text.
func files(a string, more ...string) map[string]string {
	m := map[string]string{"workspace/a": a}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

func TestMergeMakesATurn(t *testing.T) {
	w := newMergeWorld(t)
	base := w.turn("main", files("1\n2\n3\n"), "A=1", "B=1")
	w.fork(base, "explore")
	theirs := w.turn("explore", files("1\n2\nTHREE\n", "workspace/new", "x"), "A=1", "B=2")
	ours := w.turn("main", files("ONE\n2\n3\n"), "A=2", "B=1")

	dry := w.merge(Request{From: "explore", DryRun: true})
	if dry.Outcome != turnstone.MergeDone || w.turns() != 3 {
		t.Fatalf("a dry run: %+v, %d turns", dry, w.turns())
	}
	rep := w.merge(Request{From: "explore", Into: "main"})
	if rep.Outcome != turnstone.MergeDone || rep.Number != 4 || rep.Branch != "main" ||
		rep.Diverged ||
		rep.Layer.Added != 1 || rep.Layer.Changed != 1 || rep.FSHash != dry.FSHash {
		t.Fatalf("%+v", rep)
	}
	if got := w.file("research", "/workspace/a"); got != "ONE\n2\nTHREE\n" {
		t.Errorf("a: %q", got)
	}
	info, err := w.Repo.Show(t.Context(), "research@4")
	w.must(err)
	if !slices.Equal(info.Turn.Parents, []turnstone.TurnID{ours.ID, theirs.ID}) ||
		info.Record.Kind != turnstone.TurnKindMerge || info.Turn.Kind != "merge" {
		t.Errorf("%+v", info.Turn)
	}
	if !slices.Equal(info.State.Env, []string{"A=2", "B=2"}) || info.State.Cwd != "/workspace" ||
		info.State.Tree.Hash != rep.FSHash {
		t.Errorf("%+v", info.State)
	}
	receipt, err := w.Repo.Receipt(t.Context(), "research@4")
	w.must(err)
	doc, err := document.Parse("receipt.md", receipt)
	if err != nil || len(doc.Steps) != 0 {
		t.Fatalf("the receipt is no document: %v", err)
	}
	for _, want := range []string{"# Merge explore into main", "merged: " + string(theirs.ID),
		"parent: " + string(ours.ID), "| `/workspace/a` |", string(rep.FSHash),
		"1 added, 1 changed"} {
		if !strings.Contains(string(receipt), want) {
			t.Errorf("the receipt lacks %q:\n%s", want, receipt)
		}
	}
	if rep := w.merge(Request{From: "explore"}); rep.Outcome != turnstone.MergeUpToDate ||
		w.turns() != 4 {
		t.Errorf("again: %+v", rep)
	}
	// explore has no changes since the merge.
	rep = w.merge(Request{From: "main", Into: "research@explore"})
	if rep.Outcome != turnstone.MergeFastForward || w.turns() != 4 {
		t.Errorf("back: %+v", rep)
	}
	if b, err := w.CS.DB.Branch(t.Context(), w.s.ID, "explore"); err != nil ||
		b.Head != info.Turn.ID {
		t.Errorf("explore: %+v, %v", b, err)
	}
}

func TestMergeConflictsKeepNothing(t *testing.T) {
	w := newMergeWorld(t)
	base := w.turn("main", files("1\n"), "A=1")
	w.fork(base, "explore")
	w.turn("explore", files("2\n"), "A=2")
	ours := w.turn("main", files("3\n"), "A=3")
	rep := w.merge(Request{From: "research@explore"})
	if rep.Outcome != turnstone.MergeConflicts || len(rep.Conflicts) != 2 ||
		rep.Conflicts[0].Path != "/workspace/a" || rep.Conflicts[1].Path != "env:A" ||
		w.turns() != 3 {
		t.Fatalf("%+v", rep)
	}
	if b, err := w.CS.DB.Branch(t.Context(), w.s.ID, "main"); err != nil || b.Head != ours.ID {
		t.Errorf("main: %+v, %v", b, err)
	}
	_, err := Merge(t.Context(), w.Repo, Request{From: "explore",
		Paths: map[string]turnstone.Side{"/workspace/b": turnstone.SideOurs}})
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(turnstone.HintOf(err), "/workspace/a, env:A") {
		t.Errorf("a path without a conflict: %v (%s)", err, turnstone.HintOf(err))
	}
	rep = w.merge(Request{From: "explore", Markers: true,
		Paths:   map[string]turnstone.Side{"env:A": turnstone.SideTheirs},
		Message: "both | `of` them"})
	if rep.Outcome != turnstone.MergeDone || len(rep.Resolved) != 2 {
		t.Fatalf("%+v", rep)
	}
	want := "<<<<<<< main\n3\n||||||| turn 1\n1\n=======\n2\n>>>>>>> explore\n"
	if got := w.file("research", "/workspace/a"); got != want {
		t.Errorf("a: %q", got)
	}
	info, err := w.Repo.Show(t.Context(), "research")
	w.must(err)
	if !slices.Equal(info.State.Env, []string{"A=2"}) || info.Turn.Title != "both | `of` them" {
		t.Errorf("%v, %q", info.State.Env, info.Turn.Title)
	}
	if !strings.Contains(rep.Receipt, "| content |") ||
		!strings.Contains(rep.Receipt, "| markers |") {
		t.Errorf("the receipt:\n%s", rep.Receipt)
	}
}

func TestMergeFastForward(t *testing.T) {
	w := newMergeWorld(t)
	base := w.turn("main", files("1\n"))
	w.fork(base, "explore")
	theirs := w.turn("explore", files("2\n"))
	rep := w.merge(Request{From: "explore", DryRun: true})
	if rep.Outcome != turnstone.MergeFastForward {
		t.Fatalf("%+v", rep)
	}
	rep = w.merge(Request{From: "explore", NoFF: true})
	if rep.Outcome != turnstone.MergeDone || rep.FSHash != rep.Theirs.FSHash {
		t.Fatalf("--no-ff: %+v", rep)
	}
	w.fork(base, "other")
	rep = w.merge(Request{From: "explore", Into: "other"})
	b, err := w.CS.DB.Branch(t.Context(), w.s.ID, "other")
	if rep.Outcome != turnstone.MergeFastForward || err != nil || b.Head != theirs.ID ||
		w.turns() != 3 {
		t.Errorf("%+v, %+v, %v", rep, b, err)
	}
}

func TestMergeFindsTheSession(t *testing.T) {
	w := newMergeWorld(t)
	base := w.turn("main", files("1\n"))
	w.fork(base, "explore")
	w.turn("explore", files("2\n"))
	w.turn("main", files("1\n", "b", "x"))
	for _, c := range []struct {
		req  Request
		kind turnstone.Kind
	}{
		{Request{From: "nothing"}, turnstone.KindNotFound},
		{Request{From: "explore", Into: "nothing"}, turnstone.KindNotFound},
		{Request{From: "explore", Session: "nothing"}, turnstone.KindNotFound},
		{Request{From: "research@9"}, turnstone.KindNotFound},
	} {
		if _, err := Merge(t.Context(), w.Repo, c.req); turnstone.KindOf(err) != c.kind {
			t.Errorf("%+v: %v", c.req, err)
		}
	}
	for _, req := range []Request{
		{From: "explore"}, {From: "research@explore"},
		{From: "explore", Session: "research"}, {From: "2", Session: "research"},
		{From: "explore", Into: "research@main"}, {From: "explore~0"},
	} {
		req.DryRun = true
		if rep := w.merge(req); rep.Outcome != turnstone.MergeDone || rep.Session != "research" {
			t.Errorf("%+v: %+v", req, rep)
		}
	}
	other, err := w.CS.DB.Create(t.Context(), "other")
	w.must(err)
	first := w.s
	w.s = other
	w.fork(w.turn("main", files("1\n")), "explore")
	_, err = Merge(t.Context(), w.Repo, Request{From: "explore"})
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(turnstone.HintOf(err), "other@explore") ||
		!strings.Contains(turnstone.HintOf(err), "research@explore") {
		t.Errorf("two sessions: %v (%s)", err, turnstone.HintOf(err))
	}
	_, err = Merge(t.Context(), w.Repo, Request{From: "other@explore", Into: first.Name + "@main"})
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("across sessions: %v", err)
	}
}

// TestMergesRace: of two concurrent merges into one branch one moves the branch, and the other
// becomes a new branch.
func TestMergesRace(t *testing.T) {
	w := newMergeWorld(t)
	base := w.turn("main", files("1\n"))
	const n = 4
	for i := range n {
		branch := fmt.Sprintf("b%d", i)
		w.fork(base, branch)
		w.turn(branch, files("1\n", branch, "x"))
	}
	w.turn("main", files("1\n", "own", "x"))
	reports := make(chan *turnstone.MergeReport, n)
	for i := range n {
		go func() {
			rep, err := Merge(t.Context(), w.Repo, Request{From: fmt.Sprintf("b%d", i)})
			if err != nil {
				t.Error(err)
			}
			reports <- rep
		}()
	}
	branches := map[string]bool{}
	for range n {
		if rep := <-reports; rep != nil {
			if rep.Diverged == (rep.Branch == "main") ||
				!strings.Contains(rep.Receipt, "branch: "+rep.Branch+"\n") {
				t.Errorf("%+v", rep)
			}
			branches[fmt.Sprint(rep.Branch, rep.Number)] = true
		}
	}
	if len(branches) != n {
		t.Errorf("%v", branches)
	}
}

func TestMergeWorkingDirectoryIsThere(t *testing.T) {
	w := newMergeWorld(t)
	base := w.turn("main", files("1\n"))
	w.fork(base, "explore")
	// /workspace is deleted by one side, and unchanged by the other
	w.turn("explore", map[string]string{"b": "x"})
	w.turn("main", files("1\n", "c", "x"))
	rep := w.merge(Request{From: "explore"})
	if rep.Outcome != turnstone.MergeDone || rep.Cwd != "/" || rep.CwdGone != "/workspace" ||
		!strings.Contains(rep.Receipt, "is not in the merged tree") {
		t.Errorf("%+v", rep)
	}
}

// TestMergeReceiptOfAnyNames checks that the receipt is a document without steps for any names of
// files.
func TestMergeReceiptOfAnyNames(t *testing.T) {
	for _, name := range []string{"a|b", "`", "``a``", "\n```sh\necho hi\n```\n", "\xff", "---",
		"<b>", "\x1b[2J", strings.Repeat("é", 2000)} {
		m := &merging{req: Request{From: "x", Into: "main", Message: name},
			report: &turnstone.MergeReport{Ours: &turnstone.MergeSide{},
				Theirs: &turnstone.MergeSide{},
				Merged: []string{"/" + name}, Renames: []turnstone.MergeRename{{From: "/" + name,
					To: "/b"}}, CwdGone: "/" + name, Cwd: "/",
				Resolved: []turnstone.Conflict{{Path: "/" + name, Kind: turnstone.ConflictLinks,
					Detail: name, Ours: &turnstone.ConflictVersion{Path: name}}}}}
		doc, err := document.Parse("merge.md", []byte(m.document()))
		if err != nil || len(doc.Steps) != 0 {
			t.Errorf("%q: %v, %d steps:\n%s", name, err, len(doc.Steps), m.document())
			continue
		}
		if _, err := document.Parse("merge.md", doc.Receipt(document.TurnInfo{ID: "t_x"},
			nil)); err != nil {
			t.Errorf("%q: the receipt: %v", name, err)
		}
	}
}

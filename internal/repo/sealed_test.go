package repo_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

const marker = "marker-in-the-files-of-a-session"

// found returns the files below dir that contain one of the texts.
func found(t *testing.T, dir string, texts ...string) (in []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				in = append(in, path+": "+text)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// shown returns texts that show a content: itself, and its digest.
func shown(text string) []string {
	d := turnstone.DigestBytes([]byte(text)).Hex()
	raw, _ := hex.DecodeString(d)
	return []string{text, d, string(raw)}
}

func read(t *testing.T, r *repo.Repo, ref, name string) (string, error) {
	t.Helper()
	in, err := r.OpenFile(t.Context(), ref, name)
	if err != nil {
		return "", err
	}
	defer func() { _ = in.Close() }()
	b, err := io.ReadAll(in)
	return string(b), err
}

func files(more map[string]string) []treetest.File {
	all := map[string]string{"/" + marker + "-name": marker}
	for name, text := range more {
		all[name] = text
	}
	return treetest.Texts(all)
}

// TestSealedSession: what is stored of a sealed session shows nothing, equal contents of two
// sessions have nothing in common, and without the keys the session is locked, while gc and fsck
// work.
func TestSealedSession(t *testing.T) {
	keys := repotest.NewKeys(false)
	p := repotest.NewSealed(t, keys)
	p.Sign()
	ctx := t.Context()
	one, two := p.Session("one"), p.Session("two")
	if one.Domain == "" || one.Domain == two.Domain {
		t.Fatalf("%+v %+v", one, two)
	}
	big := strings.Repeat(marker, 100_000)
	first := p.Turn(one, "main", files(map[string]string{"/big": big, "/first": "1"})...)
	p.Turn(one, "main", files(map[string]string{"/big": big})...)
	same := p.Turn(two, "main", files(map[string]string{"/big": big, "/first": "1"})...)

	st := ok[*turnstone.TurnInfo](t)(p.Repo.Show(ctx, "one@1"))
	if st.Turn.State == "" || st.Turn.Title != "the title of a turn" || st.State == nil {
		t.Errorf("%+v", st)
	}
	for _, ref := range []string{"one@1", "one", "two"} {
		if text, err := read(t, p.Repo, ref, "/big"); err != nil || text != big {
			t.Errorf("%s: %d bytes, %v", ref, len(text), err)
		}
	}
	diff := ok[*turnstone.StateDiff](t)(p.Repo.Diff(ctx, turnstone.DiffRequest{From: "one@1", To: "2"}))
	if len(diff.Files) != 1 || diff.Files[0].Path != "/first" {
		t.Errorf("%+v", diff.Files)
	}
	if _, err := p.Repo.Diff(ctx, turnstone.DiffRequest{From: "one@1", To: "two"}); err == nil {
		t.Error("turns of two domains were compared")
	}

	texts := append(shown(marker), shown(big)...)
	texts = append(texts, "the title of a turn", string(first.State), string(same.State), marker+"-name")
	if in := found(t, p.Repo.Dir.Root, texts...); len(in) > 0 {
		t.Errorf("in the clear: %q", in)
	}

	gc := func() *turnstone.GCReport {
		t.Helper()
		return ok[*turnstone.GCReport](t)(p.Repo.GC(ctx, turnstone.GCRequest{
			Now: time.Now().Add(24 * time.Hour), KeepUnreachable: 365 * 24 * time.Hour}))
	}
	fsck := func() {
		t.Helper()
		rep := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx))
		if len(rep.Problems) > 0 || rep.Turns != 3 {
			t.Errorf("%+v", rep)
		}
	}
	fsck()
	for _, locked := range []bool{true, false} {
		keys.Lock(locked)
		if rep := gc(); len(rep.Turns) > 0 || rep.Store.Objects > 0 {
			t.Errorf("locked %v: gc deleted %+v", locked, rep)
		}
		fsck()
		u := ok[*turnstone.Usage](t)(p.Repo.Usage(ctx))
		if len(u.Sessions) != 2 || u.Shared != 0 {
			t.Errorf("locked %v: %+v", locked, u)
		}
		for _, s := range u.Sessions { // what is stored: the large file is repetitive
			if s.Turns == 0 || s.Unique < 1000 || s.Unique != s.Logical || s.Unique > 100_000 {
				t.Errorf("locked %v: %+v", locked, s)
			}
		}
		g := ok[*turnstone.Graph](t)(p.Repo.Log(ctx, "one", 0))
		if len(g.Turns) != 2 || g.Turns[0].Locked != locked || (g.Turns[0].Title == "") != locked {
			t.Errorf("locked %v: %+v", locked, g.Turns)
		}
		text, err := read(t, p.Repo, "one", "/big")
		if locked && (!errors.Is(err, turnstone.ErrLocked) || text != "") || !locked && text != big {
			t.Errorf("locked %v: %d bytes, %v", locked, len(text), err)
		}
	}
}

// TestSealedGC: gc deletes what no turn of a sealed session needs, also without the keys, and nothing
// else.
func TestSealedGC(t *testing.T) {
	keys := repotest.NewKeys(true)
	p := repotest.NewSealed(t, keys)
	ctx := t.Context()
	s, other := p.Session("s"), p.Session("other")
	if s.Domain != other.Domain {
		t.Fatal("two domains")
	}
	p.Turn(s, "main", files(nil)...)
	ok[turnstone.Branch](t)(p.Repo.Fork(ctx, "s@1", "side"))
	p.Turn(s, "side", files(map[string]string{"/side": "only here", "/both": "in both"})...)
	p.Turn(s, "main", files(map[string]string{"/both": "in both"})...)
	p.Turn(other, "main", files(map[string]string{"/other": "elsewhere"})...)
	ok[turnstone.Session](t)(p.Repo.RemoveBranch(ctx, "s", "side"))
	ok[turnstone.Session](t)(p.Repo.RemoveSession(ctx, "other"))
	keys.Lock(true)
	rep := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx, turnstone.GCRequest{
		Now: time.Now().Add(24 * time.Hour)}))
	if len(rep.Turns) != 1 || rep.Store.Objects == 0 || rep.Remain != 2 {
		t.Errorf("%+v", rep)
	}
	keys.Lock(false)
	view := ok[*repo.ContextStore](t)(p.CS.In(ctx, s.Domain))
	for text, there := range map[string]bool{"only here": false, "elsewhere": false, "in both": true,
		marker: true} {
		has := ok[bool](t)(view.Store.Has(ctx, turnstone.DigestBytes([]byte(text))))
		if has != there {
			t.Errorf("%s: %v", text, has)
		}
	}
	if r := ok[*turnstone.FsckReport](t)(p.Repo.Fsck(ctx)); len(r.Problems) > 0 {
		t.Errorf("%+v", r.Problems)
	}
	if text, err := read(t, p.Repo, "s", "/both"); text != "in both" {
		t.Errorf("%q %v", text, err)
	}
}

// TestSeal seals sessions that were not: afterwards they read as before, and nothing of them is in
// the clear. A second call finds them sealed.
func TestSeal(t *testing.T) {
	keys := repotest.NewKeys(false)
	p := repotest.NewSealed(t, nil)
	p.Sign()
	ctx := t.Context()
	s := p.Session("s")
	public := p.Session("public")
	big := repotest.Random(3<<20, 7)
	for n := range 3 {
		p.Turn(s, "main", files(map[string]string{"/big": big, "/n": strings.Repeat("n", n)})...)
	}
	p.Turn(public, "main", treetest.Texts(map[string]string{"/public": "stays as it is"})...)
	ended := ok[turnstone.Turn](t)(p.CS.DB.Turn(ctx, ok[*turnstone.TurnInfo](t)(
		p.Repo.Show(ctx, "s@1")).Turn.ID))
	folder := p.Repo.Dir.Path("turns", string(ended.ID))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"receipt.md", "step-1.stdout"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(marker), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := ok[*turnstone.Graph](t)(p.Repo.Log(ctx, "s", 0))

	if _, err := p.Repo.Seal(ctx, []string{"s"}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("without keys: %v", err)
	}
	if err := p.Repo.Close(); err != nil {
		t.Fatal(err)
	}
	r := repotest.Open(p.Repo.Dir)
	r.Keys = keys
	t.Cleanup(func() { _ = r.Close() })
	machine := filepath.Join(ok[string](t)(r.Dir.MkdirAll("machines")), string(s.ID)+"-main.json")
	if err := os.WriteFile(machine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Seal(ctx, []string{"s"}); turnstone.KindOf(err) != turnstone.KindUnavailable {
		t.Errorf("with a paused machine: %v", err)
	}
	if err := os.Remove(machine); err != nil {
		t.Fatal(err)
	}
	rep := ok[*turnstone.SealReport](t)(r.Seal(ctx, []string{"s"}))
	if len(rep.Sealed) != 1 || rep.Sealed[0].Already || rep.Sealed[0].Objects == 0 || rep.Freed == 0 {
		t.Errorf("%+v", rep)
	}
	if in := found(t, p.Repo.Dir.Root, append(shown(marker), big[:1000], "the title of a turn")...); len(in) > 0 {
		// the title of the public session is the same
		for _, at := range in {
			if !strings.Contains(at, "context.db") || !strings.HasSuffix(at, "the title of a turn") {
				t.Errorf("in the clear: %q", at)
			}
		}
	}
	after := ok[*turnstone.Graph](t)(r.Log(ctx, "s", 0))
	for i := range after.Turns {
		now, was := after.Turns[i], before.Turns[i]
		if now.Domain == "" || now.Title != was.Title || now.State != was.State ||
			now.Record != was.Record || now.Statement != was.Statement {
			t.Errorf("%+v, was %+v", now, was)
		}
	}
	if text, err := read(t, r, "s@2", "/big"); text != big || err != nil {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if text, err := read(t, r, "public", "/public"); text != "stays as it is" {
		t.Errorf("%q %v", text, err)
	}
	if r := ok[*turnstone.FsckReport](t)(r.Fsck(ctx)); len(r.Problems) > 0 {
		t.Errorf("%+v", r.Problems)
	}
	again := ok[*turnstone.SealReport](t)(r.Seal(ctx, []string{"s"}))
	if len(again.Sealed) != 1 || !again.Sealed[0].Already {
		t.Errorf("%+v", again)
	}
}

// TestCheckpointIsNotSealed: a session with an interrupted turn that can be resumed is not sealed. Its
// checkpoint would stay in the clear, and gc would delete the end of the resumed turn.
func TestCheckpointIsNotSealed(t *testing.T) {
	p := repotest.NewSealed(t, nil)
	ctx := t.Context()
	s := p.Session("s")
	past := p.Turn(s, "main", files(nil)...)
	interrupted := ok[turnstone.Turn](t)(p.CS.DB.Start(ctx, session.StartTurn{Session: s.ID,
		Branch: "main", Kind: turnstone.TurnKindRun, Title: "long"}))
	if err := p.CS.DB.SetCheckpoint(ctx, session.Checkpoint{Turn: interrupted.ID,
		Record: past.Record, State: past.State, Step: 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.CS.DB.Finish(ctx, session.Finish{Turn: interrupted.ID,
		Result: turnstone.ResultError}); err != nil {
		t.Fatal(err)
	}
	if err := p.Repo.Close(); err != nil {
		t.Fatal(err)
	}
	r := repotest.Open(p.Repo.Dir)
	r.Keys = repotest.NewKeys(false)
	t.Cleanup(func() { _ = r.Close() })
	_, err := r.Seal(ctx, []string{"s"})
	if turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(turnstone.HintOf(err), "turn resume "+string(interrupted.ID)) {
		t.Errorf("%v, hint: %s", err, turnstone.HintOf(err))
	}
	if g := ok[*turnstone.Graph](t)(r.Log(ctx, "s", 0)); g.Session.Domain != "" {
		t.Errorf("the session is sealed: %+v", g.Session)
	}
}

// TestSealRewritesDatabase: no part of the database's files that is unused has a title of a session
// that is sealed, also if another session cannot be sealed.
func TestSealRewritesDatabase(t *testing.T) {
	p := repotest.NewSealed(t, nil)
	ctx := t.Context()
	s, running := p.Session("s"), p.Session("running")
	start := func(s turnstone.Session, title string) turnstone.Turn {
		return ok[turnstone.Turn](t)(p.CS.DB.Start(ctx, session.StartTurn{Session: s.ID,
			Branch: "main", Kind: turnstone.TurnKindRun, Title: title}))
	}
	const title = "title-of-a-turn"
	for range 20 {
		one := start(s, title)
		if _, _, err := p.CS.DB.Finish(ctx, session.Finish{Turn: one.ID,
			Result: turnstone.ResultError}); err != nil {
			t.Fatal(err)
		}
	}
	start(running, "another turn")
	r := repotest.Open(p.Repo.Dir)
	r.Keys = repotest.NewKeys(false)
	t.Cleanup(func() { _ = r.Close() })
	if in := found(t, p.Repo.Dir.Root, title); len(in) == 0 {
		t.Error("the title is nowhere before")
	}
	rep, err := r.Seal(ctx, []string{"s", "running"})
	if turnstone.KindOf(err) != turnstone.KindUnavailable || len(rep.Sealed) != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	if in := found(t, p.Repo.Dir.Root, title); len(in) > 0 {
		t.Errorf("in the clear: %q", in)
	}
}

// TestShred: after it nothing of the session is left, and others are as before.
func TestShred(t *testing.T) {
	keys := repotest.NewKeys(false)
	p := repotest.NewSealed(t, keys)
	ctx := t.Context()
	s, other := p.Session("s"), p.Session("other")
	p.Turn(s, "main", files(nil)...)
	p.Turn(other, "main", files(nil)...)
	if _, err := p.Repo.Shred(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Repo.Session(ctx, "s"); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%v", err)
	}
	domains := ok[map[string]bool](t)(domainsIn(ctx, p.CS))
	if domains[string(s.Domain)] || !domains[string(other.Domain)] {
		t.Errorf("%v", domains)
	}
	if in := found(t, p.Repo.Dir.Root, string(s.Domain)); len(in) > 0 {
		t.Errorf("%q", in)
	}
	if text, err := read(t, p.Repo, "other", "/"+marker+"-name"); text != marker {
		t.Errorf("%q %v", text, err)
	}
	// A process that ended after the key was destroyed: the next call removes the rest.
	third := p.Session("third")
	p.Turn(third, "main", files(nil)...)
	if err := keys.Shred(ctx, third.Domain, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, p.Repo, "third", "/x"); !errors.Is(err, turnstone.ErrLocked) {
		t.Errorf("%v", err)
	}
	ok[turnstone.Session](t)(p.Repo.Shred(ctx, "third"))
	public := repotest.NewSealed(t, nil)
	public.Turn(public.Session("s"), "main", files(nil)...)
	if _, err := public.Repo.Shred(ctx, "s"); turnstone.KindOf(err) != turnstone.KindInvalid ||
		turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	shared := repotest.NewSealed(t, repotest.NewKeys(true))
	shared.Turn(shared.Session("s"), "main", files(nil)...)
	shared.Turn(shared.Session("t"), "main", files(nil)...)
	if _, err := shared.Repo.Shred(ctx, "s"); turnstone.KindOf(err) != turnstone.KindInvalid ||
		turnstone.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	if text, err := read(t, shared.Repo, "t", "/"+marker+"-name"); text != marker {
		t.Errorf("%q %v", text, err)
	}
}

func domainsIn(ctx context.Context, cs *repo.ContextStore) (map[string]bool, error) {
	all, err := cs.Store.Domains(ctx)
	in := map[string]bool{}
	for id := range all {
		in[id.String()] = true
	}
	return in, err
}

// TestSealInterrupted fails a conversion at each of its writes, as if the process ended there. After
// each failure the session reads as before, is sealed or is not, and a second conversion completes
// the first.
func TestSealInterrupted(t *testing.T) {
	const operations = 200 // more than a conversion has
	whole := false
	for n := 1; !whole && n < operations; n++ {
		whole = sealUntil(t, n)
	}
	if !whole {
		t.Error("no conversion was completed")
	}
}

// sealUntil fails the n-th write of a conversion and all later ones. It reports whether there were
// fewer.
func sealUntil(t *testing.T, n int) bool {
	t.Helper()
	p := repotest.NewSealed(t, nil)
	ctx := t.Context()
	for n := range 2 {
		p.Turn(p.Session("s"), "main", files(map[string]string{"/n": strings.Repeat("n", n)})...)
	}
	p.Turn(p.Session("other"), "main", treetest.Texts(map[string]string{"/other": "of the other"})...)
	id := ok[*turnstone.TurnInfo](t)(p.Repo.Show(ctx, "s@1")).Turn.ID
	folder := ok[string](t)(p.Repo.Dir.MkdirAll("turns", string(id)))
	if err := os.WriteFile(filepath.Join(folder, "receipt.md"), []byte(marker), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Repo.Close(); err != nil {
		t.Fatal(err)
	}
	keys := repotest.NewKeys(false)
	count := 0
	dying := repotest.Open(p.Repo.Dir)
	dying.Keys = keys
	dying.Fault = func(op string) error {
		if count++; count >= n {
			return errors.New("the process ends before " + op)
		}
		return nil
	}
	_, err := dying.Seal(ctx, []string{"s"})
	_ = dying.Close()
	failed := err != nil

	r := repotest.Open(p.Repo.Dir)
	r.Keys = keys
	defer func() { _ = r.Close() }()
	for ref, want := range map[string]string{"s@1": "", "s": "n"} {
		if text, err := read(t, r, ref, "/n"); text != want || err != nil {
			t.Fatalf("write %d: %s: %q %v", n, ref, text, err)
		}
	}
	if rep := ok[*turnstone.FsckReport](t)(r.Fsck(ctx)); len(rep.Problems) > 0 {
		t.Fatalf("write %d: %+v", n, rep.Problems)
	}
	ok[*turnstone.SealReport](t)(r.Seal(ctx, []string{"s"}))
	if in := found(t, p.Repo.Dir.Root, shown(marker)...); len(in) > 0 {
		t.Fatalf("write %d: in the clear: %q", n, in)
	}
	if text, err := read(t, r, "s", "/"+marker+"-name"); text != marker {
		t.Fatalf("write %d: %q %v", n, text, err)
	}
	if text, err := read(t, r, "other", "/other"); text != "of the other" {
		t.Fatalf("write %d: %q %v", n, text, err)
	}
	return !failed
}

// startTurn returns an interrupted turn.
func startTurn(t *testing.T, p *repotest.Past, s turnstone.Session, title string) turnstone.Turn {
	t.Helper()
	one := ok[turnstone.Turn](t)(p.CS.DB.Start(t.Context(), session.StartTurn{Session: s.ID,
		Branch: "main", Kind: turnstone.TurnKindRun, Title: title}))
	if _, _, err := p.CS.DB.Finish(t.Context(), session.Finish{Turn: one.ID,
		Result: turnstone.ResultError}); err != nil {
		t.Fatal(err)
	}
	return one
}

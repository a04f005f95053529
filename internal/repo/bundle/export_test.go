package bundle

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// exported is a session with a fork and a tag, as a file.
func exported(t *testing.T) (p *repotest.Past, file []byte) {
	t.Helper()
	p = repotest.New(t)
	ctx := t.Context()
	s := p.Session("story")
	p.Turn(s, "main", treetest.Texts(map[string]string{"/w/a": "one", "/w/d/e/f": "deep",
		"/w/big": repotest.Random(3<<20, 7)})...)
	ok[turnstone.Branch](t)(p.Repo.Fork(ctx, "story@1", "side"))
	p.Turn(s, "side", treetest.Texts(map[string]string{"/w/a": "side"})...)
	p.Turn(s, "main", append(treetest.Texts(map[string]string{"/w/a": "two", "/w/d/e/f": "deep"}),
		treetest.File{Path: "/w/link", Target: "a"})...)
	ok[turnstone.Tag](t)(p.Repo.Tag(ctx, "story@2", "v1"))
	p.Turn(p.Session("other"), "main",
		treetest.Texts(map[string]string{"/secret": "of another session"})...)
	var out bytes.Buffer
	ok[*turnstone.ExportReport](t)(host(p.Repo).Export(ctx, ExportRequest{Session: "story"}, &out))
	return p, out.Bytes()
}

func TestExportImport(t *testing.T) {
	p, file := exported(t)
	ctx := t.Context()
	var again bytes.Buffer
	ok[*turnstone.ExportReport](t)(host(p.Repo).Export(ctx, ExportRequest{Session: "story"},
		&again))
	if !bytes.Equal(file, again.Bytes()) {
		t.Error("the same session gives other bytes")
	}
	q := repotest.New(t)
	rep := ok[*turnstone.ImportReport](t)(host(q.Repo).Import(ctx, ImportRequest{},
		bytes.NewReader(file)))
	if !rep.Fresh || rep.Turns != 3 || rep.Session.Name != "story" {
		t.Errorf("%+v", rep)
	}
	a, b := ok[*turnstone.Graph](t)(p.Repo.Session(ctx, "story")),
		ok[*turnstone.Graph](t)(q.Repo.Session(ctx, "story"))
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("got\n%+v, want\n%+v", b, a)
	}
	for n := 1; n <= 3; n++ {
		ref := fmt.Sprintf("story@%d", n)
		x, y := ok[*turnstone.TurnInfo](t)(p.Repo.Show(ctx, ref)),
			ok[*turnstone.TurnInfo](t)(q.Repo.Show(ctx, ref))
		if x.State.Tree != y.State.Tree {
			t.Errorf("turn %d: %v, want %v", n, y.State.Tree, x.State.Tree)
		}
		before := treetest.List(t, p.CS.Store, x.State.Tree)
		after := treetest.List(t, q.CS.Store, y.State.Tree)
		if !slices.Equal(before, after) {
			t.Errorf("turn %d: got\n%q, want\n%q", n, after, before)
		}
	}
	if r := ok[*turnstone.FsckReport](t)(q.Repo.Fsck(ctx)); len(r.Problems) > 0 || r.Turns != 3 {
		t.Errorf("%+v", r)
	}
	if rep := ok[*turnstone.ImportReport](t)(host(q.Repo).Import(ctx, ImportRequest{},
		bytes.NewReader(file))); rep.Fresh {
		t.Error("the second run changed data")
	}
	_, err := host(q.Repo).Import(ctx, ImportRequest{As: "renamed"}, bytes.NewReader(file))
	if turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("the same session under another name: %v", err)
	}
	r := repotest.New(t)
	r.Session("story")
	_, err = host(r.Repo).Import(ctx, ImportRequest{}, bytes.NewReader(file))
	if turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(turnstone.HintOf(err), "--as") {
		t.Errorf("the name is used: %v (%s)", err, turnstone.HintOf(err))
	}
	if rep := ok[*turnstone.ImportReport](t)(host(r.Repo).Import(ctx, ImportRequest{As: "renamed"},
		bytes.NewReader(file))); rep.Session.Name != "renamed" || !rep.Fresh {
		t.Errorf("%+v", rep)
	}
	if got := string(ok[[]byte](t)(r.Repo.Receipt(ctx, "renamed@v1"))); !strings.HasSuffix(got,
		"\n# Turn 2\n") {
		t.Errorf("receipt: %q", got)
	}
	// The export has no data of another session.
	if g := r.CS; ok[bool](t)(g.Store.Has(ctx,
		turnstone.DigestBytes([]byte("of another session")))) {
		t.Error("the folder has a file of another session")
	}
}

// TestImportRefuses checks that every damaged or forged file is rejected, and leaves no session.
func TestImportRefuses(t *testing.T) {
	p, file := exported(t)
	ctx := t.Context()
	good := repotest.Unpack(t, file)
	if len(good) < 20 {
		t.Fatalf("%d entries", len(good))
	}
	object := func(b []byte) repotest.Entry {
		return repotest.Entry{Name: "objects/" + turnstone.DigestBytes(b).Hex(), Data: b,
			Kind: tar.TypeReg}
	}
	head := func(f func(h *exportHead)) repotest.Entry {
		var h exportHead
		if err := json.Unmarshal(good[0].Data, &h); err != nil {
			t.Fatal(err)
		}
		f(&h)
		return repotest.Entry{Name: "session.json", Data: ok[[]byte](t)(json.Marshal(h)),
			Kind: tar.TypeReg}
	}
	cases := map[string][]byte{
		"empty":    nil,
		"not zstd": []byte("hello"),
		"cut off":  file[:len(file)/2],
		"no head":  repotest.Pack(t, good[1:]),
		"head is JSON": repotest.Pack(t,
			append([]repotest.Entry{{Name: "session.json", Data: []byte("{"), Kind: tar.TypeReg}},
				good[1:]...)),
		"a newer format": repotest.Pack(t,
			append([]repotest.Entry{head(func(h *exportHead) { h.Format = 99 })}, good[1:]...)),
		"a stranger's turn": repotest.Pack(t, append([]repotest.Entry{head(func(h *exportHead) {
			h.Turns[0].Record = h.Turns[1].Record
		})}, good[1:]...)),
		"another result": repotest.Pack(t, append([]repotest.Entry{head(func(h *exportHead) {
			h.Turns[0].Result = turnstone.ResultFailed
		})}, good[1:]...)),
		"another parent": repotest.Pack(t,
			append([]repotest.Entry{head(func(h *exportHead) { h.Turns[0].Parents = nil })},
				good[1:]...)),
		"unreferenced": repotest.Pack(t,
			append(slices.Clone(good), object([]byte("nobody names me")))),
		"twice": repotest.Pack(t, append(slices.Clone(good), good[3])),
		"a path": repotest.Pack(t,
			append(slices.Clone(good), repotest.Entry{Name: "objects/../../x", Kind: tar.TypeReg})),
		"a link": repotest.Pack(t,
			append(slices.Clone(good), repotest.Entry{Name: good[3].Name, Kind: tar.TypeSymlink})),
		"huge": repotest.Pack(t,
			append(slices.Clone(good),
				repotest.Entry{Name: object([]byte("x")).Name, Kind: tar.TypeReg, Size: 1 << 40})),
	}
	for i := 1; i < len(good); i++ {
		damaged := slices.Clone(good)
		damaged[i].Data = append([]byte("x"), good[i].Data...)
		cases[fmt.Sprintf("object %d damaged", i)] = repotest.Pack(t, damaged)
		cases[fmt.Sprintf("object %d missing", i)] = repotest.Pack(t,
			slices.Delete(slices.Clone(good), i, i+1))
	}
	for what, bad := range cases {
		q := repotest.New(t)
		rep, err := host(q.Repo).Import(ctx, ImportRequest{}, bytes.NewReader(bad))
		if k := turnstone.KindOf(err); err == nil || k == turnstone.KindInternal {
			t.Errorf("%s: %+v, %v (%s)", what, rep, err, k)
		}
		if all := ok[[]turnstone.SessionInfo](t)(q.Repo.Sessions(ctx)); len(all) != 0 {
			t.Errorf("%s: left %v", what, all)
		}
		if r := ok[*turnstone.FsckReport](t)(q.Repo.Fsck(ctx)); len(r.Problems) > 0 {
			t.Errorf("%s: left %+v", what, r.Problems)
		}
		_ = q.Repo.Close()
	}
	_ = p
}

package turn

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// exported is a session with a fork and a tag, as a file.
func exported(t *testing.T) (p *past, file []byte) {
	t.Helper()
	p = newPast(t)
	ctx := t.Context()
	s := p.session("story")
	p.turn(s, "main", texts(map[string]string{"/w/a": "one", "/w/d/e/f": "deep", "/w/big": random(3<<20, 7)})...)
	ok[session.Branch](t)(p.x.Fork(ctx, "story@1", "side"))
	p.turn(s, "side", texts(map[string]string{"/w/a": "side"})...)
	p.turn(s, "main", append(texts(map[string]string{"/w/a": "two", "/w/d/e/f": "deep"}), treetest.File{Path: "/w/link", Target: "a"})...)
	ok[session.Tag](t)(p.x.Tag(ctx, "story@2", "v1"))
	p.turn(p.session("other"), "main", texts(map[string]string{"/secret": "of another session"})...)
	var out bytes.Buffer
	ok[*ExportReport](t)(p.x.Export(ctx, ExportRequest{Session: "story"}, &out))
	return p, out.Bytes()
}

func TestExportImport(t *testing.T) {
	p, file := exported(t)
	ctx := t.Context()
	var again bytes.Buffer
	ok[*ExportReport](t)(p.x.Export(ctx, ExportRequest{Session: "story"}, &again))
	if !bytes.Equal(file, again.Bytes()) {
		t.Error("the same session gives other bytes")
	}
	q := newPast(t)
	rep := ok[*ImportReport](t)(q.x.Import(ctx, ImportRequest{}, bytes.NewReader(file)))
	if !rep.Fresh || rep.Turns != 3 || rep.Session.Name != "story" {
		t.Errorf("%+v", rep)
	}
	a, b := ok[*session.Graph](t)(p.x.Session(ctx, "story")), ok[*session.Graph](t)(q.x.Session(ctx, "story"))
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Errorf("got\n%+v, want\n%+v", b, a)
	}
	for n := 1; n <= 3; n++ {
		ref := fmt.Sprintf("story@%d", n)
		x, y := ok[*repo.TurnInfo](t)(p.x.Show(ctx, ref)), ok[*repo.TurnInfo](t)(q.x.Show(ctx, ref))
		if x.State.Tree != y.State.Tree {
			t.Errorf("turn %d: %v, want %v", n, y.State.Tree, x.State.Tree)
		}
		before, after := treetest.List(t, p.cs.Store, x.State.Tree), treetest.List(t, q.cs.Store, y.State.Tree)
		if !slices.Equal(before, after) {
			t.Errorf("turn %d: got\n%q, want\n%q", n, after, before)
		}
	}
	if r := ok[*repo.FsckReport](t)(q.x.Fsck(ctx)); len(r.Problems) > 0 || r.Turns != 3 {
		t.Errorf("%+v", r)
	}
	if rep := ok[*ImportReport](t)(q.x.Import(ctx, ImportRequest{}, bytes.NewReader(file))); rep.Fresh {
		t.Error("the second time changed something")
	}
	if _, err := q.x.Import(ctx, ImportRequest{As: "renamed"}, bytes.NewReader(file)); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("the same session under another name: %v", err)
	}
	r := newPast(t)
	r.session("story")
	if _, err := r.x.Import(ctx, ImportRequest{}, bytes.NewReader(file)); turnstone.KindOf(err) != turnstone.KindInvalid || !strings.Contains(turnstone.HintOf(err), "--as") {
		t.Errorf("the name is used: %v (%s)", err, turnstone.HintOf(err))
	}
	if rep := ok[*ImportReport](t)(r.x.Import(ctx, ImportRequest{As: "renamed"}, bytes.NewReader(file))); rep.Session.Name != "renamed" || !rep.Fresh {
		t.Errorf("%+v", rep)
	}
	if got := string(ok[[]byte](t)(r.x.Receipt(ctx, "renamed@v1"))); got != "# Turn 2\n" {
		t.Errorf("receipt: %q", got)
	}
	// Nothing of another session came with it.
	if g := r.cs; ok[bool](t)(g.Store.Has(ctx, turnstone.DigestBytes([]byte("of another session")))) {
		t.Error("it has a file of another session")
	}
}

// A tarEntry is an entry of an exported file.
type tarEntry struct {
	name string
	data []byte
	kind byte
	size int64 // what its header says; 0: what it has
}

func unpackExport(t *testing.T, file []byte) []tarEntry {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var all []tarEntry
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tarEntry{name: h.Name, data: ok[[]byte](t)(io.ReadAll(tr)), kind: h.Typeflag})
	}
}

func packExport(t *testing.T, entries []tarEntry) []byte {
	t.Helper()
	var out bytes.Buffer
	z := ok[*zstd.Encoder](t)(zstd.NewWriter(&out))
	tw := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Size: int64(len(e.data)), Mode: 0o644}
		if e.size != 0 {
			h.Size = e.size
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(e.data); err != nil {
			t.Fatal(err)
		}
	}
	_ = tw.Flush() // misses what size promises
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestImportRefuses: whatever is wrong with a file, no session comes of it.
func TestImportRefuses(t *testing.T) {
	p, file := exported(t)
	ctx := t.Context()
	good := unpackExport(t, file)
	if len(good) < 20 {
		t.Fatalf("%d entries", len(good))
	}
	object := func(b []byte) tarEntry {
		return tarEntry{name: "objects/" + turnstone.DigestBytes(b).Hex(), data: b, kind: tar.TypeReg}
	}
	head := func(f func(h *exportHead)) tarEntry {
		var h exportHead
		if err := json.Unmarshal(good[0].data, &h); err != nil {
			t.Fatal(err)
		}
		f(&h)
		return tarEntry{name: "session.json", data: ok[[]byte](t)(json.Marshal(h)), kind: tar.TypeReg}
	}
	cases := map[string][]byte{
		"empty":             nil,
		"not zstd":          []byte("hello"),
		"cut off":           file[:len(file)/2],
		"no head":           packExport(t, good[1:]),
		"head is JSON":      packExport(t, append([]tarEntry{{name: "session.json", data: []byte("{"), kind: tar.TypeReg}}, good[1:]...)),
		"a newer format":    packExport(t, append([]tarEntry{head(func(h *exportHead) { h.Format = 99 })}, good[1:]...)),
		"a stranger's turn": packExport(t, append([]tarEntry{head(func(h *exportHead) { h.Turns[0].Record = h.Turns[1].Record })}, good[1:]...)),
		"another result":    packExport(t, append([]tarEntry{head(func(h *exportHead) { h.Turns[0].Result = turnstone.ResultFailed })}, good[1:]...)),
		"another parent":    packExport(t, append([]tarEntry{head(func(h *exportHead) { h.Turns[0].Parents = nil })}, good[1:]...)),
		"unreferenced":      packExport(t, append(slices.Clone(good), object([]byte("nobody names me")))),
		"twice":             packExport(t, append(slices.Clone(good), good[3])),
		"a path":            packExport(t, append(slices.Clone(good), tarEntry{name: "objects/../../x", kind: tar.TypeReg})),
		"a link":            packExport(t, append(slices.Clone(good), tarEntry{name: good[3].name, kind: tar.TypeSymlink})),
		"huge":              packExport(t, append(slices.Clone(good), tarEntry{name: object([]byte("x")).name, kind: tar.TypeReg, size: 1 << 40})),
	}
	for i := 1; i < len(good); i++ {
		damaged := slices.Clone(good)
		damaged[i].data = append([]byte("x"), good[i].data...)
		cases[fmt.Sprintf("object %d damaged", i)] = packExport(t, damaged)
		cases[fmt.Sprintf("object %d missing", i)] = packExport(t, slices.Delete(slices.Clone(good), i, i+1))
	}
	for what, bad := range cases {
		q := newPast(t)
		rep, err := q.x.Import(ctx, ImportRequest{}, bytes.NewReader(bad))
		if k := turnstone.KindOf(err); err == nil || k == turnstone.KindInternal {
			t.Errorf("%s: %+v, %v (%s)", what, rep, err, k)
		}
		if all := ok[[]repo.SessionInfo](t)(q.x.Sessions(ctx)); len(all) != 0 {
			t.Errorf("%s: left %v", what, all)
		}
		if r := ok[*repo.FsckReport](t)(q.x.Fsck(ctx)); len(r.Problems) > 0 {
			t.Errorf("%s: left %+v", what, r.Problems)
		}
		_ = q.x.Close()
	}
	_ = p
}

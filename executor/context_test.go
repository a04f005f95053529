package executor

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/home"
	"turnstone.dev/turnstone/session"
	"turnstone.dev/turnstone/tree"
	"turnstone.dev/turnstone/tree/treetest"
)

// A past is a state directory with turns that are made without machines.
type past struct {
	t  *testing.T
	x  *Executor
	cs *contextStore
}

func newPast(t *testing.T) *past {
	t.Helper()
	x := New(&home.Home{Dir: t.TempDir()})
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	cs, err := x.context(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &past{t, x, cs}
}

func ok[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
		}
		return v
	}
}

// session returns the session called name; an empty name makes an anonymous one.
func (p *past) session(name string) session.Session {
	p.t.Helper()
	if name == "" {
		return ok[session.Session](p.t)(p.cs.db.Create(p.t.Context(), ""))
	}
	return ok[session.Session](p.t)(p.cs.db.Ensure(p.t.Context(), name))
}

// turn commits a turn that leaves these files.
func (p *past) turn(s session.Session, branch string, files ...treetest.File) session.Turn {
	p.t.Helper()
	ctx := p.t.Context()
	t := ok[session.Turn](p.t)(p.cs.db.Start(ctx, session.StartTurn{Session: s.ID, Branch: branch, Kind: string(KindRun), Title: "a turn"}))
	batch, err := p.cs.store.Begin(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = batch.Close() }()
	put := func(v any) turnstone.Digest {
		b, err := json.Marshal(v)
		if err != nil {
			p.t.Fatal(err)
		}
		return ok[turnstone.Digest](p.t)(batch.Put(ctx, b))
	}
	st := State{Format: stateFormat, Image: "base", Cwd: "/workspace", Env: []string{"A=1", fmt.Sprintf("N=%d", t.Number)}}
	st.Tree = treetest.Make(p.t, batch, files...)
	receipt := fmt.Sprintf("# Turn %d\n", t.Number)
	rec := Record{Format: recordFormat, ID: t.ID, Session: t.Session, Number: t.Number, Branch: branch, Parents: t.Parents, Kind: KindRun,
		Image: "base", Result: turnstone.Passed, State: put(st)}
	if rec.Receipt, err = batch.PutContent(ctx, strings.NewReader(receipt), int64(len(receipt))); err != nil {
		p.t.Fatal(err)
	}
	rec.Document = rec.Receipt
	out := fmt.Sprintf("output of turn %d", t.Number)
	stdout, err := batch.PutContent(ctx, strings.NewReader(out), int64(len(out)))
	if err != nil {
		p.t.Fatal(err)
	}
	rec.Steps = []RecordStep{{Name: "step 1", Status: turnstone.StepPassed, Stdout: &stdout}}
	record := put(rec)
	if err := batch.Flush(ctx); err != nil {
		p.t.Fatal(err)
	}
	var head *turnstone.TurnID
	if id := t.Parent(); id != "" {
		head = &id
	}
	if _, _, err = p.cs.db.Finish(ctx, session.Finish{Turn: t.ID, Result: rec.Result, Record: record, State: rec.State, MoveBranch: true, ExpectedHead: head}); err != nil {
		p.t.Fatal(err)
	}
	return ok[session.Turn](p.t)(p.cs.db.Turn(ctx, t.ID))
}

func texts(m map[string]string) []treetest.File { return treetest.Texts(m) }

// random returns bytes that do not compress, the same for the same seed.
func random(n int, seed byte) string {
	b, x := make([]byte, n), uint64(seed)+1
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
	return string(b)
}

func TestDiffOfStates(t *testing.T) {
	p := newPast(t)
	s := p.session("s")
	many := strings.Repeat("line\n", 20)
	before := append(texts(map[string]string{"/a/same": "same", "/a/edited": many + "old\n" + many, "/a/gone": "gone\n", "/a/moved": "moved\n" + many,
		"/a/no-newline": "x", "/a/turns": "file\n", "/a/blob": "\x00old", "/a/we\"ird\n": "w\n"}),
		treetest.File{Path: "/a/mode", Data: "m", Mode: 0o644}, treetest.File{Path: "/a/dev", Type: tree.Char, Major: 1, Minor: 3})
	after := append(texts(map[string]string{"/a/same": "same", "/a/edited": many + "new\n" + many, "/a/came": "came\n", "/b/moved": "moved\n" + many,
		"/a/no-newline": "y", "/a/blob": "\x00newer", "/a/we\"ird\n": "w2\n"}),
		treetest.File{Path: "/a/mode", Data: "m", Mode: 0o755}, treetest.File{Path: "/a/dev", Type: tree.Char, Major: 1, Minor: 5},
		treetest.File{Path: "/a/turns", Target: "same"})
	p.turn(s, "main", before...)
	p.turn(s, "main", after...)
	d := ok[*StateDiff](t)(p.x.Diff(t.Context(), DiffRequest{From: "s@1", To: "2", Stat: true, Text: true}))
	var got []string
	patch := ""
	for _, f := range d.Files {
		got = append(got, fmt.Sprintf("%s %v +%d -%d %v", f, f.What, f.Plus, f.Minus, f.Binary))
		if !f.Binary && f.Status != Retyped {
			patch += f.Patch
		}
	}
	want := []string{
		`M /a/blob [content] +0 -0 true`, `A /a/came [] +1 -0 false`, `M /a/dev [device] +0 -0 false`, `M /a/edited [content] +1 -1 false`,
		`D /a/gone [] +0 -1 false`, `M /a/mode [mode] +0 -0 false`, `M /a/no-newline [content] +1 -1 false`, `T /a/turns [] +1 -1 false`,
		"M /a/we\"ird\n [content] +1 -1 false", `A /b [] +0 -0 false`, `R /a/moved -> /b/moved [] +0 -0 false`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(d.Env) != 1 || d.Env[0].Name != "N" || d.Cwd != nil {
		t.Errorf("environment: %+v, %+v", d.Env, d.Cwd)
	}
	// git takes the patch, and what comes out is the second state.
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	dir := t.TempDir()
	if err := p.x.CopyOut(t.Context(), "s@1", "/a", dir+"/", func(string, string) {}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "apply", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(patch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, out, patch)
	}
	for file, want := range map[string]string{"a/edited": many + "new\n" + many, "a/came": "came\n", "b/moved": "moved\n" + many, "a/no-newline": "y", "a/we\"ird\n": "w2\n"} {
		if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", file, b, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a/gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a/gone: %v", err)
	}
}

func TestFilesOfAState(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	s := p.session("s")
	big := random(3<<20, 1)
	files := append(texts(map[string]string{"/workspace/out.csv": "a,b\n", "/workspace/big": big, "/workspace/dir/deep/x": "x", "/etc/passwd": "p"}),
		treetest.File{Path: "/workspace/link", Target: "out.csv"}, treetest.File{Path: "/workspace/dir/evil", Target: "../../../../etc"},
		treetest.File{Path: "/workspace/dir/inside", Target: "deep/x"},
		treetest.File{Path: "/workspace/dir/pipe", Type: tree.FIFO}, treetest.File{Path: "/workspace/dir/suid", Data: "s", Mode: 0o4755},
		treetest.File{Path: "/workspace/dir/\xff\xfe", Data: "bytes"}, treetest.File{Path: "/workspace/loop", Target: "loop"})
	p.turn(s, "main", files...)
	cat := func(name string) (string, error) {
		in, err := p.x.OpenFile(ctx, "s@1", name)
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(in)
		return string(b), errors.Join(err, in.Close())
	}
	for name, want := range map[string]string{"/workspace/out.csv": "a,b\n", "out.csv": "a,b\n", "link": "a,b\n", "dir/../link": "a,b\n", "/workspace/big": big,
		"dir/evil/passwd": "p"} { // in the state, that leads to the state's own
		if got, err := cat(name); err != nil || got != want {
			t.Errorf("%s: %.20q, %v", name, got, err)
		}
	}
	for name, kind := range map[string]turnstone.Kind{"none": turnstone.NotFound, "dir": turnstone.Invalid, "dir/pipe": turnstone.Invalid, "loop": turnstone.Invalid} {
		if _, err := cat(name); turnstone.KindOf(err) != kind {
			t.Errorf("%s: %v, want %s", name, err, kind)
		}
	}
	var listed []string
	list := func(f FileInfo) error { listed = append(listed, f.Path+" "+f.Type); return nil }
	if err := p.x.ListFiles(ctx, "s", "dir", true, list); err != nil {
		t.Fatal(err)
	}
	want := []string{"/workspace/dir/deep dir", "/workspace/dir/deep/x file", "/workspace/dir/evil symlink", "/workspace/dir/inside symlink",
		"/workspace/dir/pipe fifo", "/workspace/dir/suid file", "/workspace/dir/\xff\xfe file"}
	if !slices.Equal(listed, want) {
		t.Errorf("listed %q, want %q", listed, want)
	}
	dest := t.TempDir()
	var skipped []string
	if err := p.x.CopyOut(ctx, "s@1", "dir", dest, func(name, _ string) { skipped = append(skipped, filepath.Base(name)) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(skipped)
	if want := []string{"evil", "pipe", "suid"}; !slices.Equal(skipped, want) {
		t.Errorf("skipped %q, want %q", skipped, want)
	}
	if b, err := os.ReadFile(filepath.Join(dest, "dir/inside")); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if st, err := os.Lstat(filepath.Join(dest, "dir/suid")); err != nil || st.Mode() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
	if b, err := os.ReadFile(filepath.Join(dest, "dir/\xff\xfe")); err != nil || string(b) != "bytes" {
		t.Errorf("%q, %v", b, err)
	}
	if err := p.x.CopyOut(ctx, "s@1", "link", filepath.Join(dest, "renamed"), nil); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dest, "renamed")); err != nil || string(b) != "a,b\n" {
		t.Errorf("%q, %v", b, err)
	}
}

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
		x, y := ok[*TurnInfo](t)(p.x.Show(ctx, ref)), ok[*TurnInfo](t)(q.x.Show(ctx, ref))
		if x.State.Tree != y.State.Tree {
			t.Errorf("turn %d: %v, want %v", n, y.State.Tree, x.State.Tree)
		}
		before, after := treetest.List(t, p.cs.store, x.State.Tree), treetest.List(t, q.cs.store, y.State.Tree)
		if !slices.Equal(before, after) {
			t.Errorf("turn %d: got\n%q, want\n%q", n, after, before)
		}
	}
	if r := ok[*FsckReport](t)(q.x.Fsck(ctx)); len(r.Problems) > 0 || r.Turns != 3 {
		t.Errorf("%+v", r)
	}
	if rep := ok[*ImportReport](t)(q.x.Import(ctx, ImportRequest{}, bytes.NewReader(file))); rep.Fresh {
		t.Error("the second time changed something")
	}
	if _, err := q.x.Import(ctx, ImportRequest{As: "renamed"}, bytes.NewReader(file)); turnstone.KindOf(err) != turnstone.Invalid {
		t.Errorf("the same session under another name: %v", err)
	}
	r := newPast(t)
	r.session("story")
	if _, err := r.x.Import(ctx, ImportRequest{}, bytes.NewReader(file)); turnstone.KindOf(err) != turnstone.Invalid || !strings.Contains(turnstone.HintOf(err), "--as") {
		t.Errorf("the name is used: %v (%s)", err, turnstone.HintOf(err))
	}
	if rep := ok[*ImportReport](t)(r.x.Import(ctx, ImportRequest{As: "renamed"}, bytes.NewReader(file))); rep.Session.Name != "renamed" || !rep.Fresh {
		t.Errorf("%+v", rep)
	}
	if got := string(ok[[]byte](t)(r.x.Receipt(ctx, "renamed@v1"))); got != "# Turn 2\n" {
		t.Errorf("receipt: %q", got)
	}
	// Nothing of another session came with it.
	if g := r.cs; ok[bool](t)(g.store.Has(ctx, turnstone.DigestBytes([]byte("of another session")))) {
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
		"another result":    packExport(t, append([]tarEntry{head(func(h *exportHead) { h.Turns[0].Result = turnstone.Failed })}, good[1:]...)),
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
		if k := turnstone.KindOf(err); err == nil || k == turnstone.Internal {
			t.Errorf("%s: %+v, %v (%s)", what, rep, err, k)
		}
		if all := ok[[]SessionInfo](t)(q.x.Sessions(ctx)); len(all) != 0 {
			t.Errorf("%s: left %v", what, all)
		}
		if r := ok[*FsckReport](t)(q.x.Fsck(ctx)); len(r.Problems) > 0 {
			t.Errorf("%s: left %+v", what, r.Problems)
		}
		_ = q.x.Close()
	}
	_ = p
}

// TestWeekOfTurns is a history with gc, by a clock of its own.
func TestWeekOfTurns(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	s := p.session("s")
	day := func(n int) time.Time { return time.Now().Add(time.Duration(n) * 24 * time.Hour) }
	for n := range 4 {
		p.turn(s, "main", texts(map[string]string{"/kept": fmt.Sprint("kept ", n), "/big": random(2<<20, 3)})...)
	}
	ok[session.Branch](t)(p.x.Fork(ctx, "s@2", "side"))
	side := p.turn(s, "side", texts(map[string]string{"/side": "only here", "/blob": random(2<<20, 9)})...)
	anonymous := p.turn(p.session(""), "main", texts(map[string]string{"/anonymous": "only here too"})...)
	folder := filepath.Join(p.x.home.Dir, "turns", string(anonymous.ID))
	kept := filepath.Join(p.x.home.Dir, "turns", string(ok[*TurnInfo](t)(p.x.Show(ctx, "s@1")).Turn.ID))
	stray := filepath.Join(p.x.home.Dir, "turns", string(turnstone.NewTurnID()))
	for _, dir := range []string{folder, kept, stray} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "receipt.md"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	only := func(text string) bool {
		return ok[bool](t)(p.cs.store.Has(ctx, turnstone.DigestBytes([]byte(text))))
	}
	gc := func(now time.Time, dry bool) *GCReport {
		t.Helper()
		rep := ok[*GCReport](t)(p.x.GC(ctx, GCRequest{KeepAnonymous: DefaultKeepAnonymous, KeepUnreachable: DefaultKeepUnreachable, Now: now, DryRun: dry}))
		if r := ok[*FsckReport](t)(p.x.Fsck(ctx)); len(r.Problems) > 0 {
			t.Fatalf("after gc: %+v", r.Problems)
		}
		return rep
	}
	if rep := gc(day(0), false); len(rep.Sessions)+len(rep.Turns)+rep.Store.Objects+rep.Folders != 0 || rep.Remain != 6 {
		t.Errorf("day 0: %+v", rep)
	}
	// The would-be report is what then happens.
	would := gc(day(8), true)
	if !only("only here too") {
		t.Fatal("a dry run deleted")
	}
	did := gc(day(8), false)
	if len(did.Sessions) != 1 || len(did.Turns) != 1 || did.Store.Objects == 0 || did.Folders != 2 || only("only here too") {
		t.Errorf("day 8: %+v", did)
	}
	if len(would.Sessions) != 1 || would.Store.Objects != did.Store.Objects || would.Folders != did.Folders || would.Remain != did.Remain || would.Objects != did.Objects {
		t.Errorf("announced %+v, did %+v", would, did)
	}
	for dir, there := range map[string]bool{folder: false, stray: false, kept: true} {
		if _, err := os.Stat(dir); (err == nil) != there {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := p.x.RemoveBranch(ctx, "s", "side"); err != nil {
		t.Fatal(err)
	}
	if gc(day(29), false); !only("only here") {
		t.Error("a turn of a branch that was removed went too early")
	}
	did = gc(day(31), false)
	if len(did.Turns) != 1 || did.Turns[0].ID != side.ID || only("only here") || did.Freed < 1<<20 {
		t.Errorf("day 31: %+v", did)
	}
	for n := 1; n <= 4; n++ {
		in := ok[io.ReadCloser](t)(p.x.OpenFile(ctx, fmt.Sprintf("s@%d", n), "/kept"))
		if b, err := io.ReadAll(in); err != nil || string(b) != fmt.Sprint("kept ", n-1) {
			t.Errorf("turn %d: %q, %v", n, b, err)
		}
		_ = in.Close()
	}
	ok[session.Session](t)(p.x.RemoveSession(ctx, "s"))
	if did = gc(day(31), false); did.Remain != 0 || did.Objects != 0 {
		t.Errorf("when all is removed: %+v", did)
	}
}

// TestGCBesideTurns: turns are committed while gc runs over and over.
func TestGCBesideTurns(t *testing.T) {
	p := newPast(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := p.x.GC(t.Context(), GCRequest{Now: time.Now().Add(time.Hour)}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	s := p.session("s")
	for n := range 15 {
		// What was deleted comes back, too.
		p.turn(s, "main", texts(map[string]string{"/a": fmt.Sprint(n % 3), "/b": fmt.Sprint(n)})...)
		if n%4 == 3 {
			ok[session.Session](t)(p.x.RemoveSession(t.Context(), "s"))
			s = p.session("s")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if r := ok[*FsckReport](t)(p.x.Fsck(t.Context())); len(r.Problems) > 0 {
		t.Errorf("%+v", r.Problems)
	}
}

func TestFsckAndUsage(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	s, other := p.session("s"), p.session("other")
	p.turn(s, "main", texts(map[string]string{"/shared": random(100<<10, 1), "/own": random(200<<10, 2)})...)
	p.turn(s, "main", texts(map[string]string{"/shared": random(100<<10, 1)})...)
	p.turn(other, "main", texts(map[string]string{"/shared": random(100<<10, 1)})...)
	u := ok[*Usage](t)(p.x.Usage(ctx))
	for _, su := range u.Sessions {
		if want := map[string]int64{"s": 300 << 10, "other": 100 << 10}[su.Name]; su.Logical < want || su.Logical > want+20<<10 || su.Unique+su.Shared != su.Logical ||
			su.Shared < 100<<10 || su.Shared > 110<<10 {
			t.Errorf("%+v", su)
		}
	}
	if u.Logical < 300<<10 || u.Logical > 330<<10 || u.Store.Bytes < u.Logical || u.Store.Stored == 0 || u.Database == 0 {
		t.Errorf("%+v", u)
	}
	if r := ok[*FsckReport](t)(p.x.Fsck(ctx)); !r.OK() || r.Turns != 3 || r.Sessions != 2 || r.Store.Objects == 0 {
		t.Errorf("%+v", r)
	}
	// One byte in the middle of each pack.
	packs, _ := filepath.Glob(filepath.Join(p.x.home.Dir, "store/blobs/packs/*"))
	if len(packs) == 0 {
		packs, _ = filepath.Glob(filepath.Join(p.x.home.Dir, "store/blobs/packs/*/*"))
	}
	if len(packs) == 0 {
		t.Fatal("no packs")
	}
	b := ok[[]byte](t)(os.ReadFile(packs[0]))
	b[len(b)/2] ^= 1
	if err := os.Chmod(packs[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(packs[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := ok[*FsckReport](t)(p.x.Fsck(ctx)); r.OK() || len(r.Problems) == 0 {
		t.Errorf("damage is not found: %+v", r)
	}
	// A whole pack is gone: the turns that need it are named.
	for _, pack := range packs {
		if err := os.Remove(pack); err != nil {
			t.Fatal(err)
		}
	}
	fresh := New(p.x.home)
	defer func() { _ = fresh.Close() }()
	r := ok[*FsckReport](t)(fresh.Fsck(ctx))
	named := 0
	for _, problem := range r.Problems {
		if strings.HasPrefix(problem.Where, "turn ") {
			named++
		}
	}
	if r.OK() || named != 3 {
		t.Errorf("%d turns are named: %+v", named, r.Problems)
	}
	if _, err := fresh.GC(ctx, GCRequest{}); err == nil {
		t.Error("gc goes on when what is needed is missing")
	}
}

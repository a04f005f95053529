package turn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo/bundle"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/repo/rootimage"
	"turnstone.dev/turnstone/internal/repo/templatefiles"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/templatebuild"
	"turnstone.dev/turnstone/internal/turn/paused"
	"turnstone.dev/turnstone/internal/turn/snapshot"
	"turnstone.dev/turnstone/substrate"
)

// kept returns a machine that is kept as the difference from base. wrote counts the writes of base.
func kept(t *testing.T, memory string, base []byte, wrote *int) snapshot.Parts {
	t.Helper()
	p := snapshot.Parts{Dir: t.TempDir(), Release: func() {},
		Packed: substrate.Packed{Files: []string{"memory"}, Base: turnstone.DigestBytes(base)}}
	p.WriteBase = func(_ context.Context, out string) ([]string, error) {
		*wrote++
		return []string{"base"}, errors.Join(os.Mkdir(out, 0o700),
			os.WriteFile(filepath.Join(out, "base"), base, 0o600))
	}
	if err := errors.Join(os.Mkdir(filepath.Join(p.Dir, "vm"), 0o700),
		os.WriteFile(filepath.Join(p.Dir, "vm", "memory"), []byte(memory), 0o600)); err != nil {
		t.Fatal(err)
	}
	return p
}

// of returns the snapshot of parts.
func of(t *testing.T, x *Runner, parts snapshot.Parts) *snapshot.Snapshot {
	t.Helper()
	return ok[*snapshot.Snapshot](t)(snapshot.Of(x.host.Dir, parts))
}

// bundles returns the exporter and importer of sessions of x.
func bundles(x *Runner) bundle.Host {
	return bundle.Host{Repo: x.host.Repo, Templates: x.host.Templates,
		Room: func() error { return nil }}
}

// TestBaseLives checks that the base of kept machines is stored once, is part of exports, and
// remains exactly as long as a turn needs it.
func TestBaseLives(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	wrote, base := 0, []byte(random(3<<20, 7))
	keep := func(memory, name string) *turnstone.TurnRecord {
		t.Helper()
		r := ok[*ended](t)(endWith(t, p.x, map[string]string{"/file": memory},
			of(t, p.x, kept(t, memory, base, &wrote))))
		ok[turnstone.Session](t)(p.x.host.Repo.Rename(ctx, "s", name))
		return ok[*turnstone.TurnRecord](t)(p.cs.Record(ctx, ok[turnstone.Turn](t)(p.cs.DB.Turn(ctx,
			r.info.ID))))
	}
	gc := func(p *past) {
		t.Helper()
		ok[*turnstone.GCReport](t)(p.x.host.Repo.GC(ctx,
			turnstone.GCRequest{Now: time.Now().Add(time.Hour)}))
	}
	read := func(p *past, rec *turnstone.TurnRecord, name string) ([]byte, error) {
		f, err := snapshot.Stored(ctx, p.cs.Store, rec.VM).Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		return io.ReadAll(f)
	}
	whole := func(p *past, rec *turnstone.TurnRecord) {
		t.Helper()
		if b, err := read(p, rec, "base"); err != nil || !bytes.Equal(b, base) {
			t.Errorf("the base has %d bytes: %v", len(b), err)
		}
	}
	one, two := keep("one", "a"), keep("two", "b")
	if wrote != 1 || one.VM.Files[1] != two.VM.Files[1] {
		t.Errorf("written %d times: %+v, %+v", wrote, one.VM, two.VM)
	}
	var file bytes.Buffer
	ok[*turnstone.ExportReport](t)(bundles(p.x).Export(ctx, bundle.ExportRequest{Session: "b"},
		&file))
	ok[turnstone.Session](t)(paused.RemoveSession(ctx, p.x.host, "a"))
	gc(p)
	whole(p, two)
	ok[turnstone.Session](t)(paused.RemoveSession(ctx, p.x.host, "b"))
	gc(p)
	if b, err := read(p, two, "base"); err == nil {
		t.Errorf("nothing needs the base any more, and it has %d bytes", len(b))
	}
	whole(p, keep("three", "c")) // its note exists, and the noted files do not
	if wrote != 2 {
		t.Errorf("written %d times", wrote)
	}
	there := newPast(t)
	ok[*turnstone.ImportReport](t)(bundles(there.x).Import(ctx, bundle.ImportRequest{},
		bytes.NewReader(file.Bytes())))
	gc(there)
	whole(there, two)
	if _, err := read(there, two, "../config.toml"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name that it has not: %v", err)
	}
	// If a file of the base is missing or different, the session is not imported.
	entries := repotest.Unpack(t, file.Bytes())
	for i, e := range entries {
		if len(e.Data) < 64<<10 { // a chunk of the base
			continue
		}
		with := append([]repotest.Entry{}, entries...)
		with[i].Data = append([]byte("x"), e.Data...)
		without := append(append([]repotest.Entry{}, entries[:i]...), entries[i+1:]...)
		for what, bad := range map[string][]repotest.Entry{"another": with, "missing": without} {
			if _, err := bundles(newPast(t).x).Import(ctx, bundle.ImportRequest{},
				bytes.NewReader(repotest.Pack(t, bad))); err == nil {
				t.Errorf("a chunk is %s, and it was imported", what)
			}
		}
		break
	}
}

// keptTemplate returns the template of the kept machine of rec.
func keptTemplate(ctx context.Context, x *Runner, rec *turnstone.TurnRecord) (*turnstone.Template,
	error) {
	return rootimage.Kept(ctx, x.host.Repo, x.host.Templates, rec, func(string) {})
}

// TestMachineImage checks that the template's image of a kept machine remains as long as a turn
// needs it, is exported with --full, and is found by its digest.
func TestMachineImage(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	files := p.Template("mine", map[string]string{"/etc/own": random(1<<20, 5)})
	p.Leaves(p.Session("x"), files)
	tmpl := ok[*turnstone.Template](t)(p.x.host.Repo.BuiltTemplate(ctx, "mine"))
	image := turnstone.Content{Digest: tmpl.RootDigest,
		Size: ok[os.FileInfo](t)(os.Stat(tmpl.Root)).Size()}
	want := ok[[]byte](t)(os.ReadFile(tmpl.Root))
	ok[turnstone.Session](t)(paused.RemoveSession(ctx, p.x.host, "x"))
	wrote := 0
	parts := kept(t, "memory", []byte("base"), &wrote)
	batch := ok[*store.Batch](t)(p.cs.Store.Begin(ctx))
	parts.Image, parts.Below = &image,
		[]turnstone.TreeRef{ok[turnstone.TreeRef](t)(p.x.host.Templates.Tree(ctx, tmpl, batch))}
	if err := errors.Join(batch.Flush(ctx), batch.Close()); err != nil {
		t.Fatal(err)
	}
	r := ok[*ended](t)(endWith(t, p.x, map[string]string{"/file": "x"}, of(t, p.x, parts)))
	rec := ok[*turnstone.TurnRecord](t)(p.cs.Record(ctx, ok[turnstone.Turn](t)(p.cs.DB.Turn(ctx,
		r.info.ID))))
	// The template's spec was changed since then; its image is the same.
	rec.Image, rec.Template = "mine", turnstone.DigestBytes(nil)
	found := func(p *past) {
		t.Helper()
		got, err := keptTemplate(ctx, p.x, rec)
		if err != nil {
			t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
		}
		if b := ok[[]byte](t)(os.ReadFile(got.Root)); got.RootDigest != image.Digest ||
			!bytes.Equal(b, want) {
			t.Errorf("%+v has %d bytes", got, len(b))
		}
	}
	found(p)
	var left, full bytes.Buffer
	ok[*turnstone.ExportReport](t)(bundles(p.x).Export(ctx, bundle.ExportRequest{Session: "s"},
		&left))
	ok[*turnstone.ExportReport](t)(bundles(p.x).Export(ctx, bundle.ExportRequest{Session: "s",
		Full: true}, &full))
	if left.Len() >= full.Len() {
		t.Errorf("%d bytes without the image, %d with it", left.Len(), full.Len())
	}
	time.Sleep(2 * templatefiles.LookAgain) // until a missing file is looked up again
	if _, err := templatebuild.Remove(ctx, p.x.host.Repo, p.x.host.Templates,
		templatebuild.Removal{Name: "mine"}); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(err.Error(), "image") {
		t.Errorf("a template that a kept machine needs: %v", err)
	}
	if _, err := templatebuild.Remove(ctx, p.x.host.Repo, p.x.host.Templates,
		templatebuild.Removal{Name: "mine", Keep: true}); err != nil {
		t.Fatal(err)
	}
	found(p)
	// A modified copy is not used but replaced.
	path := p.x.host.Dir.Path("cache", "roots", image.Digest.Hex()+".erofs")
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("another"),
		0o600)); err != nil {
		t.Fatal(err)
	}
	found(p)
	there := newPast(t)
	ok[*turnstone.ImportReport](t)(bundles(there.x).Import(ctx, bundle.ImportRequest{},
		bytes.NewReader(full.Bytes())))
	found(there)
	without := newPast(t)
	if rep := ok[*turnstone.ImportReport](t)(bundles(without.x).Import(ctx, bundle.ImportRequest{},
		bytes.NewReader(left.Bytes()))); rep.Missing == 0 {
		t.Errorf("%+v", rep)
	}
	if _, err := keptTemplate(ctx, without.x,
		rec); turnstone.KindOf(err) != turnstone.KindNotFound ||
		!strings.Contains(turnstone.HintOf(err), "--full") {
		t.Errorf("an image that is nowhere: %v", err)
	}
	other := newPast(t) // a template of that name with another image
	other.Template("mine", map[string]string{"/etc/own": "other"})
	_, err := keptTemplate(ctx, other.x, rec)
	if now := ok[*turnstone.Template](t)(other.x.host.Repo.BuiltTemplate(ctx,
		"mine")); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		!strings.Contains(turnstone.HintOf(err), "--full") ||
		!strings.Contains(err.Error(), image.Digest.Short()) ||
		!strings.Contains(err.Error(), now.RootDigest.Short()) {
		t.Errorf("another image: %v (%s)", err, turnstone.HintOf(err))
	}
	rec.VM.Image = &turnstone.Content{Digest: "sha256:../../../etc/passwd"}
	if _, err := keptTemplate(ctx, p.x, rec); err == nil {
		t.Error("a digest that is none")
	}
}

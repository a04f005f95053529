// Package repotest makes sessions of turns for tests, without machines.
package repotest

import (
	"archive/tar"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/chain"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/template"
)

// A Past is a repo whose turns are made without machines.
type Past struct {
	T    testing.TB
	Repo *repo.Repo
	CS   *repo.ContextStore

	Image string // of turns that Leaves commits; empty: base
	// Keys sign the turns that are committed; nil: they are not signed.
	Keys *chain.Keys
}

// Sign signs all later turns with the keys of the repo's directory.
func (p *Past) Sign() *Past {
	p.T.Helper()
	p.Keys = OK[*chain.Keys](p.T)(chain.Open(p.T.Context(), p.Repo.Dir, p.CS, nil))
	return p
}

// New returns an empty Past in a temporary directory. The test closes it.
func New(t testing.TB) *Past {
	t.Helper()
	r := Open(&statedir.Dir{Root: t.TempDir()})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return On(t, r)
}

// NewSealed returns an empty Past whose new sessions are sealed with keys.
func NewSealed(t testing.TB, keys repo.Keys) *Past {
	t.Helper()
	r := Open(&statedir.Dir{Root: t.TempDir()})
	r.Keys = keys
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if dir, err := r.Dir.Memory(); err == nil {
			_ = os.RemoveAll(dir)
		}
	})
	return On(t, r)
}

// On returns a Past on r, which the caller closes.
func On(t testing.TB, r *repo.Repo) *Past {
	t.Helper()
	return &Past{T: t, Repo: r, CS: OK[*repo.ContextStore](t)(r.Open(t.Context()))}
}

// Open returns the repo of dir without a builder of templates, as another process would have it.
// The caller closes it.
func Open(dir *statedir.Dir) *repo.Repo { return OpenAt(dir, "") }

// OpenAt is Open of a repo whose store is at place.
func OpenAt(dir *statedir.Dir, place string) *repo.Repo {
	return repo.New(dir, place, template.NewStore(dir.Path("templates")))
}

// Templates returns the templates of r, without a builder of layers.
func Templates(r *repo.Repo) *template.Store {
	return template.NewStore(r.Dir.Path("templates"))
}

// OK returns a function that returns v, and ends the test if err is not nil.
func OK[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
		}
		return v
	}
}

// Session returns the session called name. An empty name makes an anonymous session.
func (p *Past) Session(name string) turnstone.Session {
	p.T.Helper()
	if name == "" {
		return OK[turnstone.Session](p.T)(p.CS.DB.Create(p.T.Context(), ""))
	}
	return OK[turnstone.Session](p.T)(p.CS.DB.Ensure(p.T.Context(), name))
}

// Commit commits a turn that leaves the state that leave returns. Leave may change the record.
func (p *Past) Commit(s turnstone.Session, branch string,
	leave func(b *store.Batch, rec *turnstone.TurnRecord) turnstone.TurnState) turnstone.Turn {
	p.T.Helper()
	ctx := p.T.Context()
	t := OK[turnstone.Turn](p.T)(p.CS.DB.Start(ctx, session.StartTurn{Session: s.ID,
		Branch: branch, Kind: turnstone.TurnKindRun, Title: "the title of a turn"}))
	cs := OK[*repo.ContextStore](p.T)(p.CS.In(ctx, t.Domain))
	batch := OK[*store.Batch](p.T)(cs.Store.Begin(ctx))
	defer func() { _ = batch.Close() }()
	rec := &turnstone.TurnRecord{Format: repo.RecordFormat, ID: t.ID, Session: t.Session,
		Number: t.Number,
		Branch: branch, Parents: t.Parents, Kind: turnstone.TurnKindRun, Started: t.Started,
		Result: turnstone.ResultPassed}
	// first, because it may build a template, in which contents are then looked up
	st := leave(batch, rec)
	text := fmt.Sprintf("# Turn %d\n", t.Number)
	doc := OK[*document.Document](p.T)(document.Parse("turn.md", []byte(text)))
	rec.Document = p.Content(batch, text)
	rec.Receipt = p.Content(batch, string(doc.Receipt(document.TurnInfo{ID: t.ID, Number: t.Number,
		Session: s.Label(), Branch: branch, Parents: t.Parents, Started: t.Started,
		Template: rec.Template, Result: rec.Result, FSHash: st.Tree.Hash}, nil)))
	st.Format, rec.Image = repo.StateFormat, st.Image
	put := func(v any) turnstone.Digest {
		b := OK[[]byte](p.T)(json.Marshal(v))
		return OK[turnstone.Digest](p.T)(batch.Put(ctx, b))
	}
	rec.State = put(st)
	end := session.Finish{Turn: t.ID, Result: rec.Result, Record: put(rec), State: rec.State,
		MoveBranch: true}
	if p.Keys != nil {
		l := OK[*chain.Link](p.T)(p.Keys.Sign(ctx, cs, batch, t, rec, end.Record, st.Tree.Hash))
		end.Statement, end.Envelope = l.Statement, l.Envelope
	}
	if id := t.Parent(); id != "" {
		end.ExpectedHead = &id
	}
	if err := batch.Flush(ctx); err != nil {
		p.T.Fatal(err)
	}
	end.Needs = cs.Needs(batch)
	if _, _, err := p.CS.DB.Finish(ctx, end); err != nil {
		p.T.Fatal(err)
	}
	return OK[turnstone.Turn](p.T)(p.CS.DB.Turn(ctx, t.ID))
}

// Content puts text into b.
func (p *Past) Content(b *store.Batch, text string) turnstone.Content {
	p.T.Helper()
	in := strings.NewReader(text)
	return OK[turnstone.Content](p.T)(b.PutContent(p.T.Context(), in, int64(len(text))))
}

// Turn commits a turn that leaves these files.
func (p *Past) Turn(s turnstone.Session, branch string, files ...treetest.File) turnstone.Turn {
	p.T.Helper()
	return p.Commit(s, branch, func(b *store.Batch, rec *turnstone.TurnRecord) turnstone.TurnState {
		stdout := p.Content(b, fmt.Sprintf("output of turn %d", rec.Number))
		rec.Steps = []turnstone.RecordStep{
			{Name: "step 1", Status: turnstone.StepPassed, Stdout: &stdout}}
		return turnstone.TurnState{Image: "base", Cwd: "/workspace",
			Tree: treetest.Make(p.T, b, files...),
			Env:  []string{"A=1", fmt.Sprintf("N=%d", rec.Number)}}
	})
}

// Leaves commits a turn whose state has the tree that plant returns, which may be damaged.
func (p *Past) Leaves(s turnstone.Session, plant func(w tree.Writer) turnstone.TreeRef) {
	p.T.Helper()
	p.Commit(s, "main", func(b *store.Batch, _ *turnstone.TurnRecord) turnstone.TurnState {
		return turnstone.TurnState{Image: cmp.Or(p.Image, "base"), Cwd: "/", Tree: plant(b)}
	})
}

// Template registers a template called name, whose image has these files, and returns a function
// that puts the image's tree.
func (p *Past) Template(name string,
	files map[string]string) func(w tree.Writer) turnstone.TreeRef {
	p.T.Helper()
	return p.TemplateOf(name, "env = { OF = \""+name+"\" }", files)
}

// TemplateOf is Template with a spec of the lines more, beside its base.
func (p *Past) TemplateOf(name, more string,
	files map[string]string) func(w tree.Writer) turnstone.TreeRef {
	t := p.T
	t.Helper()
	text := "base = \"debian:bookworm\"\n" + more + "\n"
	spec := OK[*template.Spec](t)(template.Parse(name, []byte(text), nil))
	dir := OK[string](t)(p.Repo.Dir.MkdirAll("templates", spec.Digest().Hex()))
	specs := OK[string](t)(p.Repo.Dir.MkdirAll("templates", "specs"))
	root := filepath.Join(dir, "root.erofs")
	out := OK[*os.File](t)(os.Create(root))
	w := tar2erofs.New(out, tar2erofs.Options{TempDir: t.TempDir()})
	own := &tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Unix(0, 0),
		Uid: os.Getuid(), Gid: os.Getgid()}
	if err := w.Add(own, nil); err != nil {
		t.Fatal(err)
	}
	for path, text := range files {
		h := &tar.Header{Name: strings.TrimPrefix(path, "/"), Typeflag: tar.TypeReg, Mode: 0o644,
			Size: int64(len(text)), Uid: os.Getuid(), Gid: os.Getgid()}
		if err := w.Add(h, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	write := func(path string, v any) {
		if err := os.WriteFile(path, OK[[]byte](t)(json.Marshal(v)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	st := OK[filestamp.Stamp](t)(filestamp.Of(t.Context(), root))
	write(filepath.Join(dir, "manifest.json"),
		map[string]any{"format": 1, "digest": spec.Digest(), "root": st})
	write(filepath.Join(specs, name+".json"), spec)
	return func(w tree.Writer) turnstone.TreeRef {
		tmpl := OK[*turnstone.Template](t)(p.Repo.BuiltTemplate(t.Context(), name))
		return OK[turnstone.TreeRef](t)(Templates(p.Repo).Tree(t.Context(), tmpl, w))
	}
}

// Random returns n bytes that do not compress, the same for the same seed.
func Random(n int, seed byte) string {
	b, x := make([]byte, n), uint64(seed)+1
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
	return string(b)
}

// Package templatebuild builds the layers of templates in sandboxes, and removes templates that no
// session needs.
package templatebuild

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/wire"
)

// A Builder builds layers: it implements template.LayerBuilder.
type Builder struct {
	// Store returns the store that keeps the files of layers.
	Store func(ctx context.Context) (*store.Store, error)
	// Holds reports whether that store has the tree of a layer, and keeps it there.
	Holds func(ctx context.Context, l turnstone.TemplateLayer) (bool, error)
	// Start starts a sandbox on req.Base with access to req.Port and the hosts in req.Allow, and
	// returns the bounds for reads from it.
	Start func(ctx context.Context, req template.LayerRequest) (
		*sandbox.Sandbox, collect.Bounds, error)
	// Tree returns the tree of a template, and puts its directories into w.
	Tree func(ctx context.Context, t *turnstone.Template, w tree.Writer) (turnstone.TreeRef, error)
}

// timeLimit bounds the build of one layer.
const timeLimit = 2 * time.Hour

// Build builds a template by its name, or the spec at a path, which is registered when the build
// succeeds, and lets x find the template's files: see template.Store.Build.
func Build(ctx context.Context, x *repo.Repo, ts *template.Store, nameOrPath string,
	opts template.BuildOptions) (*turnstone.Template, error) {
	t, err := ts.Build(ctx, nameOrPath, opts)
	if err == nil {
		err = x.IndexTemplate(ctx, t)
	}
	return t, err
}

// Ensure is Build for a template or an image that the caller of a server names: the name is never a
// path, and a template that is built is not built again.
func Ensure(ctx context.Context, x *repo.Repo, ts *template.Store, name string,
	progress func(string)) (*turnstone.Template, error) {
	t, err := ts.Ensure(ctx, name, progress)
	if err == nil {
		err = x.IndexTemplate(ctx, t)
	}
	return t, err
}

// Has implements template.LayerBuilder.
func (b Builder) Has(ctx context.Context, l turnstone.TemplateLayer) (bool, error) {
	return b.Holds(ctx, l)
}

// Build implements template.LayerBuilder.
func (b Builder) Build(ctx context.Context, req template.LayerRequest,
	commit func(turnstone.TemplateLayer) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	s, bounds, err := b.Start(ctx, req)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	w := &layerWork{s: s, req: req}
	if err := w.steps(ctx); err != nil {
		return sandbox.Interrupted(ctx, s.CauseOf(err), "while template "+req.Name+" was built")
	}
	req.Say("storing what is new")
	return b.keep(ctx, w, bounds, commit)
}

// layerWork is the build of one layer, in its sandbox.
type layerWork struct {
	s   *sandbox.Sandbox
	req template.LayerRequest
}

func (w *layerWork) steps(ctx context.Context) error {
	defer w.s.Guard(ctx)()
	for _, name := range slices.Sorted(maps.Keys(w.req.Temp)) {
		if err := w.put(ctx, "/run/turn-build/"+name, 0o600, w.req.Temp[name]); err != nil {
			return err
		}
	}
	for _, step := range w.req.Steps {
		w.req.Say(step.Name)
		fmt.Fprintf(w.req.Log, "# %s\n", step.Name)
		if step.Script == "" {
			for _, f := range w.req.Files {
				if err := w.put(ctx, f.Path, uint32(f.Mode), f.Content); err != nil {
					return err
				}
			}
			continue
		}
		if err := w.step(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

// putScript writes standard input to the file $1 with the mode $2.
const putScript = `umask 022; mkdir -p -- "$(dirname -- "$1")" && ` +
	`{ [ -d "$1" ] || rm -f -- "$1"; } && cat > "$1" && chmod "$2" "$1"`

func (w *layerWork) put(ctx context.Context, path string, mode uint32, content []byte) error {
	var out tail
	argv := []string{"bash", "-c", putScript, "put", path, strconv.FormatUint(uint64(mode), 8)}
	exit, err := w.s.Client().Start(ctx, wire.ProcessStartParams{Argv: argv, Cwd: "/"},
		wire.Stdio{In: bytes.NewReader(content), Out: &out, Err: &out})
	if err == nil && exit.Exit.ExitCode != 0 {
		err = turnstone.Errorf("template.build", turnstone.KindInvalid, "file "+path,
			"cannot be put in: %.500s", out.b).WithHint("change the path in the spec's files")
	}
	return err
}

// maxListing bounds the output of a step that is parsed, in bytes.
const maxListing = 4 << 20

func (w *layerWork) step(ctx context.Context, step template.LayerStep) error {
	last := &tail{}
	read := &head{}
	out := io.Writer(io.MultiWriter(last, lenient{w.req.Log}))
	if step.Done != nil {
		out = read
	}
	argv := []string{"bash", "-e", "-o", "pipefail", "-c", "umask 022\n" + step.Script}
	exit, err := w.s.Client().Start(ctx,
		wire.ProcessStartParams{Argv: argv, Env: w.req.Env, Cwd: "/"},
		wire.Stdio{Out: out, Err: io.MultiWriter(last, lenient{w.req.Log})})
	switch {
	case err != nil:
		return err
	case exit.Exit.Killed:
		return context.Cause(ctx)
	case exit.Exit.DiskFull:
		return turnstone.Errorf("template.build", turnstone.KindExhausted, step.Name,
			"the sandbox's disk is full").
			WithHint(`give the build a larger one: [machine] disk = "16GiB" in the spec`)
	case exit.Exit.OOMKilled:
		return turnstone.Errorf("template.build", turnstone.KindExhausted, step.Name,
			"out of memory").WithHint(`give the build more: [machine] memory = "2GiB" in the spec`)
	case exit.Exit.ExitCode != 0:
		return step.Failed(int(exit.Exit.ExitCode), last.b)
	case step.Done != nil:
		return step.Done(read.b)
	}
	return nil
}

// keep stores the sandbox's changes.
func (b Builder) keep(ctx context.Context, w *layerWork, bounds collect.Bounds,
	commit func(turnstone.TemplateLayer) error) error {
	changes, err := collect.Take(ctx, w.s, nil, bounds, false)
	if err != nil {
		return err
	}
	defer func() { _ = changes.Close() }()
	to, err := b.Store(ctx)
	if err != nil {
		return err
	}
	batch, err := to.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = batch.Close() }() // protects them from garbage collection until then
	base, err := b.Tree(ctx, w.s.Template, batch)
	if err != nil {
		return err
	}
	opts := layer.Options{
		Skip:  w.req.Skip,
		Check: func(path string, a *tree.Attr) error { w.req.Settle(path, a); return nil },
	}
	ref, stats, err := changes.Apply(ctx, batch, base, opts)
	if err != nil {
		return err
	}
	if err := batch.Flush(ctx); err != nil {
		return err
	}
	l := turnstone.TemplateLayer{Tree: ref, Bytes: stats.Bytes,
		Files: stats.Added + stats.Changed + stats.Removed}
	if _, err := b.Holds(ctx, l); err != nil { // from now on
		return err
	}
	return commit(l)
}

// A tail keeps the end of its input.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 32 << 10
	t.b = append(t.b, p...)
	if over := len(t.b) - most; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// A head keeps the beginning of its input.
type head struct{ b []byte }

func (h *head) Write(p []byte) (int, error) {
	h.b = append(h.b, p[:min(len(p), maxListing-len(h.b))]...)
	return len(p), nil
}

// lenient writes to a log, whose full disk must not end a build.
type lenient struct{ w io.Writer }

func (l lenient) Write(p []byte) (int, error) {
	_, _ = l.w.Write(p)
	return len(p), nil
}

// Package bundle writes a session to one file, and reads such files.
package bundle

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
)

// An exported session is one file: tar, compressed with zstd. Its first entry is session.json, an
// exportHead. An entry objects/<hex> follows for each object that the session needs; <hex> is the
// object's SHA-256. An object follows an object that names it. The last entry is templates.json, an
// exportTail. docs/sessions.md describes the format.

const (
	// Format 4 has traces and statements, and format 3 the trees of a kept machine's images: to
	// programs that know older formats they are unreferenced objects. Format 1 had no tail.
	exportFormat  = 4
	withoutTraces = 3
	withoutTrees  = 2
	exportHeadAt  = "session.json"
	exportTailAt  = "templates.json"
	exportObject  = "objects/"
)

type exportHead struct {
	Format  int    `json:"format"`
	Version string `json:"turnstone"` // of the program that wrote it
	turnstone.Graph
	// Heads are the envelopes of the log of heads, oldest first.
	Heads []json.RawMessage `json:"heads,omitempty"`
}

// An exportTail describes the templates from which the session's turns started.
type exportTail struct {
	// LeftOut are the contents that the file omits because a template's image has them; sorted.
	LeftOut []turnstone.Digest `json:"left_out"`
	// Specs are the specs that a user registered, each after its base.
	Specs []*template.Spec `json:"specs"`
}

// Templates are the templates of exported sessions. *template.Store implements it.
type Templates interface {
	Registered(name string) ([]*template.Spec, error)
	Spec(name string) (*template.Spec, error)
	Tree(ctx context.Context, t *turnstone.Template, w tree.Writer) (turnstone.TreeRef, error)

	// Ensure, Resolve and Adopt are those of a store that can build layers.
	Ensure(ctx context.Context, name string, progress func(string)) (*turnstone.Template, error)
	Resolve(ctx context.Context, name string, progress func(string)) (*template.Spec, error)
	Adopt(ctx context.Context, s *template.Spec, progress func(string)) (*turnstone.Template, error)
}

// A Host is a state directory with its templates: the source of exports, or the target of imports.
type Host struct {
	Repo      *repo.Repo
	Templates Templates
	Room      func() error // returns an error while the disk is nearly full
}

// An ExportRequest selects what Export writes.
type ExportRequest struct {
	Session string // name or ID
	// Full also writes contents of the template, for hosts that have another template.
	Full bool
}

// Export writes a session as one file to w: its turns, branches and tags, and all data that they
// need. A running turn is omitted. The same session gives the same bytes.
func (h Host) Export(ctx context.Context, req ExportRequest,
	w io.Writer) (*turnstone.ExportReport, error) {
	g, heads, err := h.Repo.SessionWithLog(ctx, req.Session)
	if err != nil {
		return nil, err
	}
	cs, err := h.Repo.Open(ctx)
	if err == nil {
		cs, err = cs.In(ctx, g.Session.Domain)
	}
	if err != nil {
		return nil, err
	}
	done := g.Turns[:0]
	for _, t := range g.Turns {
		if t.Locked { // the key has come since
			if t, err = cs.DB.Turn(ctx, t.ID); err != nil {
				return nil, err
			}
		}
		t.Domain = "" // the file is not sealed
		if t.Status == turnstone.TurnDone {
			done = append(done, t)
		}
	}
	g.Turns, g.Session.Domain = done, ""
	z, err := zstd.NewWriter(w)
	if err != nil {
		return nil, err
	}
	e := &exporter{cs: cs, tw: tar.NewWriter(z), full: req.Full, seen: repo.Seen{},
		templates: h.Templates, heads: heads}
	e.rep = turnstone.ExportReport{Session: g.Session, Turns: len(g.Turns)}
	err = e.writeAll(ctx, g)
	if err == nil {
		err = e.tw.Close()
	}
	if err = errors.Join(err, z.Close()); err != nil {
		return nil, err
	}
	return &e.rep, nil
}

type exporter struct {
	cs   *repo.ContextStore
	tw   *tar.Writer
	full bool
	seen repo.Seen
	rep  turnstone.ExportReport

	heads     []session.LoggedHead
	templates Templates
	tail      exportTail
	images    map[string]bool           // names of templates
	machines  map[turnstone.Digest]bool // images of the templates of kept machines
}

func (e *exporter) writeAll(ctx context.Context, g *turnstone.Graph) error {
	format, err := e.look(ctx, g)
	if err != nil {
		return err
	}
	first := exportHead{Format: format, Version: turnstone.Version, Graph: *g}
	for _, h := range e.heads {
		first.Format, first.Heads = exportFormat, append(first.Heads, h.Envelope)
	}
	head, err := json.MarshalIndent(first, "", "  ")
	if err != nil {
		return err
	}
	if err := e.entry(exportHeadAt, head); err != nil {
		return err
	}
	r := &repo.Reach{In: e.cs, Object: e.seen.First, Got: e.write, Content: e.content,
		Failed: func(what string, err error) error {
			return turnstone.NewError("executor.export", turnstone.KindOf(err), what, err).
				WithHint(turnstone.HintOf(err))
		}}
	for _, t := range g.Turns {
		if err := r.Turn(ctx, t); err != nil {
			return err
		}
	}
	return e.writeTail(e.images)
}

// look records the templates and images that g's turns need, and returns the format that they need.
func (e *exporter) look(ctx context.Context, g *turnstone.Graph) (format int, err error) {
	e.images, e.machines, format = map[string]bool{}, map[turnstone.Digest]bool{}, withoutTrees
	for _, t := range g.Turns {
		if t.Record == "" {
			continue
		}
		rec, err := e.cs.Record(ctx, t)
		if err != nil {
			return 0, turnstone.NewError("executor.export", turnstone.KindOf(err),
				fmt.Sprintf("turn %d (%s): record", t.Number, t.ID),
				err).WithHint(turnstone.HintOf(err))
		}
		e.images[rec.Image] = true
		if rec.Trace != nil || t.Envelope != "" {
			format = exportFormat
		}
		if rec.VM != nil && rec.VM.Image != nil {
			e.machines[rec.VM.Image.Digest] = true
			if len(rec.VM.Layers)+len(rec.VM.Below) > 0 {
				format = max(format, withoutTraces)
			}
		}
	}
	return format, nil
}

// writeTail writes the last entry. images are the names of the templates.
func (e *exporter) writeTail(images map[string]bool) error {
	slices.Sort(e.tail.LeftOut)
	written := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		specs, err := e.templates.Registered(name)
		if err != nil {
			continue // a damaged spec is not exported; the files are
		}
		for _, s := range specs {
			if !written[s.Name] {
				e.tail.Specs = append(e.tail.Specs, s)
			}
			written[s.Name] = true
		}
	}
	b, err := json.Marshal(e.tail)
	if err != nil {
		return err
	}
	return e.entry(exportTailAt, b)
}

func (e *exporter) content(ctx context.Context, c turnstone.Content) error {
	objects, err := e.cs.Store.ContentObjects(ctx, c)
	if err != nil {
		return err
	}
	if len(objects) == 0 {
		return e.elsewhere(ctx, c)
	}
	for _, d := range objects {
		if !e.seen.First(d) {
			continue
		}
		b, err := e.cs.Store.Get(ctx, d)
		if err == nil {
			err = e.write(d, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// elsewhere writes a content of a template, or adds it to the omitted contents.
func (e *exporter) elsewhere(ctx context.Context, c turnstone.Content) error {
	if !e.seen.First(c.Digest) {
		return nil
	}
	if !e.full || c.Size > store.MaxObject && e.machines[c.Digest] {
		e.tail.LeftOut = append(e.tail.LeftOut, c.Digest)
		return nil
	}
	if c.Size > store.MaxObject {
		return turnstone.Errorf("executor.export", turnstone.KindInvalid, string(c.Digest),
			"is a file of %s in the template, which is too large to be exported",
			turnstone.Bytes(c.Size).Human())
	}
	b, err := e.cs.Read(ctx, c, store.MaxObject)
	if err != nil {
		return err
	}
	return e.write(c.Digest, b)
}

func (e *exporter) write(d turnstone.Digest, b []byte) error {
	e.rep.Objects++
	e.rep.Bytes += int64(len(b))
	return e.entry(exportObject+d.Hex(), b)
}

// entry writes an entry without the time and the user.
func (e *exporter) entry(name string, b []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(b)),
		Format: tar.FormatUSTAR}
	if err := e.tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := e.tw.Write(b)
	return err
}

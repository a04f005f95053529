package repo

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/template/treeindex"
)

// TemplateContents finds contents in the images of all built templates, including templates whose
// spec has changed since, because states that began on them need them. It reads the folder on first
// use, and again when it does not find a content.
type TemplateContents struct {
	Dir string

	mu     sync.RWMutex
	looked time.Time
	found  map[string]*foundTemplate // by folder
	closed bool
}

// A foundTemplate is a known image.
type foundTemplate struct {
	*treeindex.Content
	root   string
	digest turnstone.Digest
	file   os.FileInfo // the image's, when it was found
}

// there reports whether the image is still the found one: another process may have removed it
// since, and content in a file without a name must not be relied on.
func (f *foundTemplate) there() bool {
	now, err := os.Stat(f.root)
	return err == nil && os.SameFile(now, f.file)
}

var _ store.Alternate = (*TemplateContents)(nil)
var _ store.Sizer = (*TemplateContents)(nil)

// LookAgain is the time for which a missing content counts as missing.
const LookAgain = 50 * time.Millisecond

// find calls match for each template until it returns true.
func (t *TemplateContents) find(match func(c *foundTemplate) bool) *foundTemplate {
	t.mu.RLock()
	c, fresh := t.among(match), t.closed || time.Since(t.looked) < LookAgain
	t.mu.RUnlock()
	if c != nil || fresh {
		return c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.looked) >= LookAgain && !t.closed {
		if !t.look() {
			t.looked = time.Now()
			return nil
		}
		t.looked = time.Now()
	}
	return t.among(match)
}

func (t *TemplateContents) among(match func(c *foundTemplate) bool) *foundTemplate {
	for _, c := range t.found {
		if match(c) && c.there() {
			return c
		}
	}
	return nil
}

// look adds new templates, and reports whether there are any. Only templates whose image has an
// index of its tree count. Removed templates are released.
func (t *TemplateContents) look() (news bool) {
	for dir, c := range t.found {
		if !c.there() {
			_ = c.Close() // nothing was written
			delete(t.found, dir)
		}
	}
	entries, err := os.ReadDir(t.Dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		dir := filepath.Join(t.Dir, e.Name())
		if _, known := t.found[dir]; known || len(e.Name()) != 64 {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "root.tree")); err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
		var manifest struct {
			Root filestamp.Stamp `json:"root"`
		}
		if err != nil || json.Unmarshal(b, &manifest) != nil || manifest.Root.Digest == "" {
			continue // partly removed: its user reports the error
		}
		tmpl := &template.Template{Name: e.Name()[:12], Root: filepath.Join(dir, "root.erofs"),
			RootDigest: manifest.Root.Digest}
		file, err := os.Stat(tmpl.Root)
		if err != nil {
			continue
		}
		if t.found == nil {
			t.found = map[string]*foundTemplate{}
		}
		t.found[dir] = &foundTemplate{tmpl.Content(), tmpl.Root, tmpl.RootDigest, file}
		news = true
	}
	return news
}

// The image itself is a content too: kept machines need it.

// HasContent reports whether the image contains the content d, or is it.
func (f *foundTemplate) HasContent(d turnstone.Digest) bool {
	return d == f.digest || f.Content.HasContent(d)
}

// HasSize reports whether the image contains a content of size bytes, or is one.
func (f *foundTemplate) HasSize(size int64) bool {
	return size == f.file.Size() || f.Content.HasSize(size)
}

// OpenContent opens a content of the image, or the image.
func (f *foundTemplate) OpenContent(ctx context.Context, c tree.Content) (io.ReadCloser, error) {
	if c.Digest == f.digest {
		return os.Open(f.root)
	}
	return f.Content.OpenContent(ctx, c)
}

// HasContent reports whether a template has the content d.
func (t *TemplateContents) HasContent(d turnstone.Digest) bool {
	return t.find(func(c *foundTemplate) bool { return c.HasContent(d) }) != nil
}

// HasSize reports whether a template has a content of size bytes.
func (t *TemplateContents) HasSize(size int64) bool {
	return t.find(func(c *foundTemplate) bool { return c.HasSize(size) }) != nil
}

// OpenContent opens a content of a template.
func (t *TemplateContents) OpenContent(ctx context.Context, c tree.Content) (io.ReadCloser, error) {
	in := t.find(func(in *foundTemplate) bool { return in.HasContent(c.Digest) })
	if in == nil {
		return nil, turnstone.Errorf("executor.template", turnstone.KindNotFound, string(c.Digest),
			"is in no template").
			WithHint("build its template again with turn template build: it may have been removed")
	}
	return in.OpenContent(ctx, c)
}

// Layers returns the layers of all built templates, including templates whose spec has changed
// since: the store keeps all data that they need. A layer that was built with another store is
// omitted; its user builds it again.
func (cs *ContextStore) Layers(ctx context.Context) ([]template.Layer, error) {
	var kept []template.Layer
	for _, l := range template.NewStore(cs.Templates.Dir).BuiltLayers() {
		has, err := cs.Store.Has(ctx, l.Tree.Root)
		if err != nil {
			return nil, err
		}
		if has {
			kept = append(kept, l)
		}
	}
	return kept, nil
}

// Close releases the images.
func (t *TemplateContents) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	var errs []error
	for _, c := range t.found {
		errs = append(errs, c.Close())
	}
	t.found = nil
	return errors.Join(errs...)
}

// templateTree returns the tree of a template. It puts missing directories of the tree into the
// store, and lets the store find the template's files.
func (cs *ContextStore) templateTree(ctx context.Context,
	tmpl *template.Template) (tree.Ref, error) {
	ref, err := cs.RootTree(ctx, tmpl)
	if n := len(tmpl.Layers); n > 0 {
		ref = tmpl.Layers[n-1].Tree
	}
	return ref, err
}

// RootTree is templateTree for the template's root image only, without its layers.
func (cs *ContextStore) RootTree(ctx context.Context, tmpl *template.Template) (tree.Ref, error) {
	batch, err := cs.Store.Begin(ctx)
	if err != nil {
		return tree.Ref{}, err
	}
	defer func() { _ = batch.Close() }()
	ref, err := cs.specs().RootTree(ctx, tmpl, batch)
	if err != nil {
		return ref, err
	}
	return ref, batch.Flush(ctx)
}

// OnlyIn reports whether the image in the folder dir, and no other image, has the content d.
func (t *TemplateContents) OnlyIn(dir string, d turnstone.Digest) bool {
	if !t.HasContent(d) {
		return false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	only := false
	for folder, in := range t.found {
		if !in.HasContent(d) {
			continue
		}
		if filepath.Clean(folder) != filepath.Clean(dir) {
			return false
		}
		only = true
	}
	return only
}

// IndexTemplate lets the store find the files of a template that was just built: an imported
// session may need them.
func (x *Repo) IndexTemplate(ctx context.Context, t *template.Template) error {
	if _, err := os.Stat(x.Dir.Path("context.db")); err != nil {
		return nil // there is no session yet
	}
	cs, err := x.Open(ctx)
	if err != nil {
		return err
	}
	_, err = cs.templateTree(ctx, t)
	return err
}

// Package templatefiles finds contents of the store in the images of templates.
package templatefiles

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
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/template/treeindex"
)

// Contents finds contents in the images of all built templates, including templates whose spec has
// changed since, because states that started from them need them. It reads the folder on first use,
// and again when it does not find a content. It is safe for concurrent use; the caller must Close
// it.
type Contents struct {
	Dir string // the folder of templates

	mu     sync.RWMutex
	looked time.Time
	found  map[string]*image // by folder
	closed bool
}

// An image is a known image.
type image struct {
	*treeindex.Content
	root   string
	digest turnstone.Digest
	file   os.FileInfo // of the image, when it was found
}

// there reports whether the file is still the image that was found: another process may have
// removed it since, and a file without a name is not reliable.
func (f *image) there() bool {
	now, err := os.Stat(f.root)
	return err == nil && os.SameFile(now, f.file)
}

var _ store.Alternate = (*Contents)(nil)
var _ store.Sizer = (*Contents)(nil)

// LookAgain is the time for which a missing content counts as missing.
const LookAgain = 50 * time.Millisecond

// find calls match for each template until it returns true.
func (t *Contents) find(match func(c *image) bool) *image {
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

func (t *Contents) among(match func(c *image) bool) *image {
	for _, c := range t.found {
		if match(c) && c.there() {
			return c
		}
	}
	return nil
}

// look adds new templates, and reports whether there are any. Only templates whose image has an
// index of its tree count. Removed templates are released.
func (t *Contents) look() (news bool) {
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
		tmpl := &turnstone.Template{Name: e.Name()[:12], Root: filepath.Join(dir, "root.erofs"),
			RootDigest: manifest.Root.Digest}
		file, err := os.Stat(tmpl.Root)
		if err != nil {
			continue
		}
		if t.found == nil {
			t.found = map[string]*image{}
		}
		t.found[dir] = &image{template.ContentOf(tmpl), tmpl.Root, tmpl.RootDigest, file}
		news = true
	}
	return news
}

// The image itself is a content too: kept machines need it.

// HasContent reports whether the image contains the content d, or is that content.
func (f *image) HasContent(d turnstone.Digest) bool {
	return d == f.digest || f.Content.HasContent(d)
}

// HasSize reports whether the image contains a content of size bytes, or has that size.
func (f *image) HasSize(size int64) bool {
	return size == f.file.Size() || f.Content.HasSize(size)
}

// OpenContent opens a content of the image, or the image.
func (f *image) OpenContent(ctx context.Context, c turnstone.Content) (io.ReadCloser, error) {
	if c.Digest == f.digest {
		return os.Open(f.root)
	}
	return f.Content.OpenContent(ctx, c)
}

// HasContent reports whether a template has the content d.
func (t *Contents) HasContent(d turnstone.Digest) bool {
	return t.find(func(c *image) bool { return c.HasContent(d) }) != nil
}

// HasSize reports whether a template has a content of size bytes.
func (t *Contents) HasSize(size int64) bool {
	return t.find(func(c *image) bool { return c.HasSize(size) }) != nil
}

// OpenContent opens a content of a template.
func (t *Contents) OpenContent(ctx context.Context, c turnstone.Content) (io.ReadCloser, error) {
	in := t.find(func(in *image) bool { return in.HasContent(c.Digest) })
	if in == nil {
		return nil, turnstone.Errorf("executor.template", turnstone.KindNotFound, string(c.Digest),
			"is in no template").
			WithHint("build its template again with turn template build: it may have been removed")
	}
	return in.OpenContent(ctx, c)
}

// OnlyIn reports whether the image in the folder dir, and no other image, has the content d.
func (t *Contents) OnlyIn(dir string, d turnstone.Digest) bool {
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

// Close releases the images.
func (t *Contents) Close() error {
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

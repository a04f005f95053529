package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Tree returns the tree that t's sandboxes begin with. Of a layered template it is in
// the context store; else it is that of RootTree.
func (s *Store) Tree(ctx context.Context, t *Template, w tree.Writer) (tree.Ref, error) {
	ref, err := s.RootTree(ctx, t, w)
	if n := len(t.Layers); err == nil && n > 0 {
		ref = t.Layers[n-1].Tree
	}
	return ref, err
}

// RootTree returns the tree that t's root image holds. Its directories' objects are put
// into w unless w has the root's; the contents are not: they are where t.Content finds
// them. The first call for an image reads all of it, at some 500 MB/s, and keeps what it
// found beside it; calls at once, in whatever processes, do that once. The next ones
// look at one small file.
func (s *Store) RootTree(ctx context.Context, t *Template, w tree.Writer) (tree.Ref, error) {
	failed := func(err error) error {
		var typed *turnstone.Error
		if errors.As(err, &typed) {
			return err
		}
		return turnstone.NewError("template.tree", turnstone.KindUnavailable, "template "+t.Name,
			err)
	}
	x, err := s.treeIndex(ctx, t)
	if err != nil {
		return tree.Ref{}, failed(err)
	}
	defer x.Close()
	ref, err := x.put(ctx, w)
	if turnstone.KindOf(err) != turnstone.KindIntegrity {
		if err != nil {
			err = failed(err)
		}
		return ref, err
	}
	// What was kept is damaged: make it anew, once.
	if err := os.Remove(t.treePath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return tree.Ref{}, failed(err)
	}
	again, err := s.treeIndex(ctx, t)
	if err != nil {
		return tree.Ref{}, failed(err)
	}
	defer again.Close()
	return again.put(ctx, w)
}

// treePath is where what is known of the image's tree is kept.
func (t *Template) treePath() string { return filepath.Join(filepath.Dir(t.Root), "root.tree") }

// treeIndex opens the index, and makes it first where there is none that fits.
func (s *Store) treeIndex(ctx context.Context, t *Template) (*treeIndex, error) {
	if x, err := openIndex(t.treePath(), t.RootDigest); err == nil {
		return x, nil
	}
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	lock, err := statedir.Acquire(ctx, filepath.Join(s.dir, "locks", t.RootDigest.Hex()+".tree.lock"), nil)
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	if x, err := openIndex(t.treePath(), t.RootDigest); err == nil {
		return x, nil // another process has made it
	}
	if err := t.writeIndex(ctx); err != nil {
		return nil, err
	}
	return openIndex(t.treePath(), t.RootDigest)
}

// writeIndex reads the image and writes its index.
func (t *Template) writeIndex(ctx context.Context) error {
	f, err := os.Open(t.Root)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	top, err := openTreeImage(f, fi.Size())
	if err != nil {
		return turnstone.NewError("template.tree", turnstone.KindIntegrity, t.Root, err).
			WithHint("remove the template and build it again")
	}
	c := &collector{Hasher: tree.NewHasher()}
	ref, err := tree.Build(ctx, c, top, tree.BuildOptions{})
	if err != nil {
		return err
	}
	return filestamp.WriteFile(t.treePath(), encodeIndex(t.RootDigest, ref, c.contents, c.objects), 0o600)
}

// A collector is a tree.Writer that keeps objects, and of contents where they are.
type collector struct {
	*tree.Hasher
	mu       sync.Mutex
	objects  [][]byte
	contents []placedContent
}

// Put keeps an object.
func (c *collector) Put(ctx context.Context, b []byte) (turnstone.Digest, error) {
	c.mu.Lock()
	c.objects = append(c.objects, append([]byte{}, b...))
	c.mu.Unlock()
	return c.Hasher.Put(ctx, b)
}

// PutContent notes where a content is. r is what tree.Build makes of imageNode.Open.
func (c *collector) PutContent(ctx context.Context, r io.Reader, size int64) (tree.Content, error) {
	content, err := c.Hasher.PutContent(ctx, r, size)
	if err != nil {
		return content, err
	}
	source, _ := r.(interface{ Source() io.Reader })
	if source == nil {
		return content, errors.New("a content has no source")
	}
	at, ok := source.Source().(*placed)
	if !ok {
		return content, errors.New("a content is not of an image")
	}
	c.mu.Lock()
	c.contents = append(c.contents, placedContent{rawDigest(content.Digest), size, at.extents})
	c.mu.Unlock()
	return content, nil
}

// put puts the tree's objects into w, if it does not have the root's, and returns the tree.
func (x *treeIndex) put(ctx context.Context, w tree.Writer) (tree.Ref, error) {
	ref := x.ref()
	if _, err := w.Get(ctx, ref.Root); err == nil {
		return ref, nil
	} else if turnstone.KindOf(err) != turnstone.KindNotFound {
		return tree.Ref{}, err
	}
	var last turnstone.Digest
	err := x.each(func(b []byte) (err error) {
		// Copied, for the index may be unmapped before w is done.
		last, err = w.Put(ctx, append([]byte{}, b...))
		return err
	})
	if err == nil && last != ref.Root {
		err = errIndex
	}
	if errors.Is(err, errIndex) {
		err = turnstone.NewError("template.tree", turnstone.KindIntegrity, ref.Root.Short(), err)
	}
	return ref, err
}

// A Content finds file contents in a template's root image. It opens the files when it is
// first asked, and keeps them open until Close. Its methods are safe for concurrent use.
type Content struct {
	t *Template

	mu     sync.RWMutex
	opened bool
	err    error
	index  *treeIndex
	image  *os.File
	size   int64 // of the image
}

// Content returns where the contents of t's tree are. Store.Tree must have been called
// for t once, in whatever process; without it there is nothing in it.
func (t *Template) Content() *Content { return &Content{t: t} }

// use calls fn while the files are open, unless they cannot be.
func (c *Content) use(fn func() error) error {
	c.mu.RLock()
	if !c.opened {
		c.mu.RUnlock()
		c.mu.Lock()
		if !c.opened {
			c.opened, c.err = true, c.open()
		}
		c.mu.Unlock()
		c.mu.RLock()
	}
	defer c.mu.RUnlock()
	if c.err != nil {
		return c.err
	}
	return fn()
}

func (c *Content) open() error {
	index, err := openIndex(c.t.treePath(), c.t.RootDigest)
	if err != nil {
		return err
	}
	image, err := os.Open(c.t.Root)
	if err == nil {
		var fi os.FileInfo
		if fi, err = image.Stat(); err == nil {
			c.index, c.image, c.size = index, image, fi.Size()
			return nil
		}
		_ = image.Close()
	}
	_ = index.Close()
	return err
}

// HasContent tells whether the image has the content of that digest.
func (c *Content) HasContent(d turnstone.Digest) bool {
	has := false
	err := c.use(func() error { _, has = c.index.find(d); return nil })
	return err == nil && has
}

// HasSize tells whether the image has a content of size bytes.
func (c *Content) HasSize(size int64) bool {
	has := false
	err := c.use(func() error { has = c.index.hasSize(size); return nil })
	return err == nil && has
}

// OpenContent opens a content. One that is not in the image is an error of kind
// KindNotFound. The bytes are not checked against the digest: who reads them does that.
func (c *Content) OpenContent(_ context.Context, want tree.Content) (io.ReadCloser, error) {
	var r io.ReadCloser
	kind := turnstone.KindUnavailable
	err := c.use(func() error {
		i, ok := c.index.find(want.Digest)
		if !ok {
			kind = turnstone.KindNotFound
			return errors.New("is not in the image of template " + c.t.Name)
		}
		size, extents, err := c.index.content(i, c.size)
		if err == nil && size != want.Size {
			err = fmt.Errorf("has %d bytes, not %d", size, want.Size)
		}
		if err != nil {
			kind = turnstone.KindIntegrity
		}
		r = &placed{extentReader{data: c.image, extents: extents}, extents}
		return err
	})
	if err != nil {
		return nil, turnstone.NewError("template.content", kind, string(want.Digest), err).
			WithHint("the template " + c.t.Name + " may have been removed or built again")
	}
	return r, nil
}

// Close lets go of the files. Afterwards there is nothing in c, and readers that are
// still open fail.
func (c *Content) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	open := c.opened && c.err == nil
	c.opened, c.err = true, os.ErrClosed
	if !open {
		return nil
	}
	return errors.Join(c.index.Close(), c.image.Close())
}

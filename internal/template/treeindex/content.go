package treeindex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"turnstone.dev/turnstone"
)

// A Content finds file contents in a template's root image. It opens the files on first use, and
// keeps them open until Close. Its methods are safe for concurrent use.
type Content struct {
	root Root

	mu     sync.RWMutex
	opened bool
	err    error
	index  *Index
	image  *os.File
	size   int64 // of the image
}

// use calls fn while the files are open, unless opening them fails.
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
	index, err := c.root.Index()
	if err != nil {
		return err
	}
	image, err := os.Open(c.root.Path)
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

// HasContent reports whether the image has the content with that digest.
func (c *Content) HasContent(d turnstone.Digest) bool {
	has := false
	err := c.use(func() error { _, has = c.index.find(d); return nil })
	return err == nil && has
}

// HasSize reports whether the image has a content of size bytes.
func (c *Content) HasSize(size int64) bool {
	has := false
	err := c.use(func() error { has = c.index.hasSize(size); return nil })
	return err == nil && has
}

// OpenContent opens a content. A content that is not in the image is an error of kind KindNotFound.
// The reader must verify the bytes against the digest.
func (c *Content) OpenContent(_ context.Context, want turnstone.Content) (io.ReadCloser, error) {
	var r io.ReadCloser
	kind := turnstone.KindUnavailable
	err := c.use(func() error {
		i, ok := c.index.find(want.Digest)
		if !ok {
			kind = turnstone.KindNotFound
			return errors.New("is not in the image of template " + c.root.Name)
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
			WithHint("build the template " + c.root.Name + " again, which may have been removed")
	}
	return r, nil
}

// Close closes the files. Afterwards c has no contents, and open readers fail.
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

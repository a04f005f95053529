package treeindex

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Root is a root image with its index beside it.
type Root struct {
	Name   string // of the template
	Path   string
	Digest turnstone.Digest
}

// indexPath returns the path of the image's index.
func (r Root) indexPath() string { return filepath.Join(filepath.Dir(r.Path), "root.tree") }

// Index opens the index.
func (r Root) Index() (*Index, error) { return openIndex(r.indexPath(), r.Digest) }

// Remove removes the index.
func (r Root) Remove() error {
	if err := os.Remove(r.indexPath()); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Content returns the location of the image's contents. Without an index it has no contents.
func (r Root) Content() *Content { return &Content{root: r} }

// Write reads the image and writes its index.
func (r Root) Write(ctx context.Context) error {
	f, err := os.Open(r.Path)
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
		return turnstone.NewError("template.tree", turnstone.KindIntegrity, r.Path, err).
			WithHint("remove the template and build it again")
	}
	c := &collector{Hasher: tree.NewHasher()}
	ref, err := tree.Build(ctx, c, top, tree.BuildOptions{})
	if err != nil {
		return err
	}
	return filestamp.WriteFile(r.indexPath(),
		encodeIndex(r.Digest, ref, c.contents, c.objects), 0o600)
}

// A collector is a tree.Writer that keeps objects, and the positions of contents.
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

// PutContent records a content's positions. r is tree.Build's wrapper of imageNode.Open.
func (c *collector) PutContent(ctx context.Context, r io.Reader, size int64) (turnstone.Content,
	error) {
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

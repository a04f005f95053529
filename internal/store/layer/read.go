package layer

import (
	"context"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A content is a file's content that is being read.
type content struct {
	path    string
	node    tree.Node
	size    int64
	content turnstone.Content // valid after all have been read
	settled bool              // content is the parent's form
}

// read starts reading a file's content, beside the walk. Files with several names are read once.
func (a *applier) read(path string, n tree.Node, ino uint64, names uint32, size int64) *content {
	if c := a.linked[ino]; c != nil && names > 1 {
		return c
	}
	c := &content{path: path, node: n, size: size}
	if names > 1 {
		a.linked[ino] = c
	}
	select {
	case a.files <- c:
	case <-a.ctx.Done(): // the walk ends at its next file
	}
	return c
}

// storeAll stores files until there are no more, or an error.
func (a *applier) storeAll() error {
	for c := range a.files {
		if err := a.store(c); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) store(c *content) error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	f, err := c.node.Open()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	a.bytes.Add(c.size)
	var in io.Reader = &guarded{ctx: a.ctx, r: f}
	if at, ok := f.(io.ReaderAt); ok {
		in = &guardedAt{guarded{ctx: a.ctx, r: f}, at}
	}
	if a.opts.Inspect != nil {
		if w := a.opts.Inspect(c.path); w != nil {
			in = io.TeeReader(in, w) // hides ReaderAt, so that all bytes are read once in order
		}
	}
	c.content, err = a.w.PutContent(a.ctx, in, c.size)
	c.node = nil
	return err
}

// guarded is a reader that ends with its context: a sparse file can be long.
type guarded struct {
	ctx context.Context
	r   io.Reader
}

func (g *guarded) Read(b []byte) (int, error) {
	if g.ctx.Err() != nil {
		return 0, context.Cause(g.ctx)
	}
	return g.r.Read(b)
}

// guardedAt is guarded for concurrent reads at several offsets.
type guardedAt struct {
	guarded
	at io.ReaderAt
}

func (g *guardedAt) ReadAt(b []byte, off int64) (int, error) {
	if g.ctx.Err() != nil {
		return 0, context.Cause(g.ctx)
	}
	return g.at.ReadAt(b, off)
}

package layer

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A content is a file's content that is being read.
type content struct {
	path    string
	node    tree.Node
	size    int64
	content turnstone.Content // valid after readers.wait
}

// readers are the goroutines that read contents during the walk.
type readers struct {
	ctx    context.Context
	cancel context.CancelCauseFunc // called with the first error
	w      tree.Writer
	opts   Options

	jobs    chan *content
	started int
	all     sync.WaitGroup
	linked  map[uint64]*content // by inode, for files with several names
	bytes   atomic.Int64

	once sync.Once
	err  error // the first error
}

func newReaders(ctx context.Context, cancel context.CancelCauseFunc,
	w tree.Writer, opts Options) *readers {
	return &readers{ctx: ctx, cancel: cancel, w: w, opts: opts, linked: map[uint64]*content{}}
}

// read starts reading a file's content. Files with several names are read once. Only a single
// goroutine calls read.
func (r *readers) read(path string, n tree.Node, ino uint64, names uint32,
	size int64) (*content, error) {
	if names > 1 {
		if c := r.linked[ino]; c != nil {
			return c, nil
		}
	}
	c := &content{path: path, node: n, size: size}
	if names > 1 {
		r.linked[ino] = c
	}
	if r.jobs == nil {
		r.jobs = make(chan *content, 4*r.opts.Parallel)
	}
	if r.started < r.opts.Parallel {
		r.started++
		r.all.Go(r.work)
	}
	select {
	case r.jobs <- c:
		return c, nil
	case <-r.ctx.Done():
		return nil, context.Cause(r.ctx)
	}
}

// wait returns after all reads, with the first error.
func (r *readers) wait() error {
	if r.jobs != nil {
		close(r.jobs)
	}
	r.all.Wait()
	r.linked = nil
	return r.err
}

func (r *readers) work() {
	for c := range r.jobs {
		if r.ctx.Err() != nil {
			r.fail(context.Cause(r.ctx))
			continue
		}
		if err := r.one(c); err != nil {
			r.fail(err)
		}
	}
}

func (r *readers) fail(err error) {
	r.once.Do(func() {
		r.err = err
		r.cancel(err)
	})
}

func (r *readers) one(c *content) error {
	f, err := c.node.Open()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	r.bytes.Add(c.size)
	var in io.Reader = &guarded{ctx: r.ctx, r: f}
	if at, ok := f.(io.ReaderAt); ok {
		in = &guardedAt{guarded{ctx: r.ctx, r: f}, at}
	}
	if r.opts.Inspect != nil {
		if w := r.opts.Inspect(c.path); w != nil {
			in = io.TeeReader(in, w) // hides ReaderAt, so that all bytes are read once in order
		}
	}
	c.content, err = r.w.PutContent(r.ctx, in, c.size)
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

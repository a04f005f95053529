package lowerdir

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A node is a file of an image to be written.
type node struct {
	name     string
	mode     fs.FileMode
	stat     erofs.Stat // further attributes, except Mode and Size
	size     int64
	target   string // target of a symlink
	content  turnstone.Content
	data     []byte  // the content, if it has no digest
	children []*node // sorted by name
}

// link makes n another name of a file: an empty file whose name points to the other's inode when
// the image is written.
func (n *node) link() {
	n.size, n.content, n.data = 0, turnstone.Content{}, nil
	n.stat.Xattrs = nil
}

// files presents nodes as the file system that the image's writer copies. The writer walks it in
// order, inspects each file once, and reads contents last.
type files struct {
	ctx    context.Context
	r      tree.Reader
	byPath map[string]*node
}

func newFiles(ctx context.Context, r tree.Reader, top *node) *files {
	f := &files{ctx: ctx, r: r, byPath: map[string]*node{".": top}}
	f.add("", top)
	return f
}

func (f *files) add(prefix string, dir *node) {
	for _, n := range dir.children {
		path := prefix + n.name
		f.byPath[path] = n
		if n.mode.IsDir() {
			f.add(path+"/", n)
		}
	}
}

func (f *files) node(op, path string) (*node, error) {
	if n := f.byPath[path]; n != nil {
		return n, nil
	}
	return nil, &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist}
}

// Open implements fs.FS.
func (f *files) Open(path string) (fs.File, error) {
	n, err := f.node("open", path)
	if err != nil {
		return nil, err
	}
	return &reader{files: f, node: n, left: n.size}, nil
}

// Stat implements fs.StatFS.
func (f *files) Stat(path string) (fs.FileInfo, error) {
	n, err := f.node("stat", path)
	return info{n}, err
}

// ReadDir implements fs.ReadDirFS.
func (f *files) ReadDir(path string) ([]fs.DirEntry, error) {
	n, err := f.node("readdir", path)
	if err != nil {
		return nil, err
	}
	entries := make([]fs.DirEntry, len(n.children))
	for i, c := range n.children {
		entries[i] = info{c}
	}
	return entries, nil
}

// ReadLink is called by the image's writer.
func (f *files) ReadLink(path string) (string, error) {
	n, err := f.node("readlink", path)
	if err != nil {
		return "", err
	}
	return n.target, nil
}

// info is a node as fs.FileInfo and fs.DirEntry.
type info struct{ *node }

func (i info) Name() string      { return i.name }
func (i info) Size() int64       { return i.size }
func (i info) Mode() fs.FileMode { return i.mode }
func (i info) Type() fs.FileMode { return i.mode.Type() }
func (i info) IsDir() bool       { return i.mode.IsDir() }
func (i info) ModTime() time.Time {
	return time.Unix(int64(i.stat.Mtime), int64(i.stat.MtimeNs))
}
func (i info) Sys() any                   { return &i.stat }
func (i info) Info() (fs.FileInfo, error) { return i, nil }

// A reader is a node's content, opened on the first read: the writer opens all files before it
// reads any.
type reader struct {
	*files
	*node
	left int64
	rc   io.ReadCloser
}

// Stat implements fs.File.
func (r *reader) Stat() (fs.FileInfo, error) { return info{r.node}, nil }

// Read implements io.Reader. It reads up to the end of the content, where the content's digest is
// verified.
func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if r.data != nil {
		n := copy(p, r.data[int64(len(r.data))-r.left:])
		if r.left -= int64(n); n == 0 && len(p) > 0 {
			return 0, io.EOF
		}
		return n, nil
	}
	if r.rc == nil {
		var err error
		if r.rc, err = r.r.OpenContent(r.ctx, r.content); err != nil {
			return 0, err
		}
	}
	n, err := r.rc.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	switch {
	case err == io.EOF && r.left > 0:
		return n, io.ErrUnexpectedEOF
	case err == nil && r.left == 0:
		if err = r.atEnd(); err != nil {
			return 0, err // the content is wrong: return none of it
		}
	}
	return n, err
}

// atEnd verifies that the content has ended.
func (r *reader) atEnd() error {
	var more [1]byte
	for range 100 {
		switch n, err := r.rc.Read(more[:]); {
		case n > 0:
			return errors.New("a file's content is longer than its size")
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
	return io.ErrNoProgress
}

// Close implements io.Closer.
func (r *reader) Close() error {
	if r.rc == nil {
		return nil
	}
	return r.rc.Close()
}

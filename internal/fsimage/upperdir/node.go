package upperdir

import (
	"context"
	"errors"
	"io"
	"os"
	"sort"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A node is a file. It does not change after the stream was read.
type node struct {
	attr  tree.Attr
	id    uint64
	names uint32
	parts []part // of a file, by offset; they do not overlap
	kids  []tree.Child
	spool *os.File
}

// A part is a part of a file with data.
type part struct {
	offset, length int64 // in the file
	at             int64 // in the spool
}

// Attr implements tree.Node.
func (n *node) Attr() (tree.Attr, error) { return n.attr, nil }

// Inode implements tree.Node.
func (n *node) Inode() (id uint64, names uint32) { return n.id, n.names }

// Children implements tree.Node.
func (n *node) Children(context.Context) ([]tree.Child, error) { return n.kids, nil }

// Open implements tree.Node. The result is also an io.ReaderAt.
func (n *node) Open() (io.ReadCloser, error) {
	if n.attr.Type != tree.File {
		return nil, turnstone.Errorf("upper.open", turnstone.KindInvalid, "the sandbox's files",
			"not a file")
	}
	return &file{n: n}, nil
}

// A file is a file's content. ReadAt is safe for concurrent use, Read is not.
type file struct {
	n   *node
	pos int64
}

// Close implements io.Closer.
func (f *file) Close() error { return nil }

// Read implements io.Reader.
func (f *file) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.pos)
	f.pos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// ReadAt implements io.ReaderAt. Holes are zeros.
func (f *file) ReadAt(b []byte, off int64) (n int, err error) {
	size := f.n.attr.Size
	if off < 0 {
		return 0, errors.New("negative offset")
	}
	if off >= size {
		return 0, io.EOF
	}
	if int64(len(b)) > size-off {
		b, err = b[:size-off], io.EOF
	}
	parts := f.n.parts
	// The first part that ends after off.
	i := sort.Search(len(parts), func(i int) bool { return parts[i].offset+parts[i].length > off })
	for n < len(b) {
		at, rest := off+int64(n), b[n:]
		if i == len(parts) {
			clear(rest)
			n += len(rest)
			break
		}
		p := parts[i]
		if at < p.offset { // a hole before the part
			rest = rest[:min(int64(len(rest)), p.offset-at)]
			clear(rest)
			n += len(rest)
			continue
		}
		rest = rest[:min(int64(len(rest)), p.offset+p.length-at)]
		k, rerr := f.n.spool.ReadAt(rest, p.at+at-p.offset)
		n += k
		if k < len(rest) {
			return n, unavailable(f.n.spool.Name(), rerr) // not the file's end
		}
		i++
	}
	return n, err
}

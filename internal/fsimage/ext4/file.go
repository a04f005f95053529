package ext4

import (
	"errors"
	"io"
	"sort"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Open returns the content of a file as a *File.
func (n *Inode) Open() (io.ReadCloser, error) {
	f, err := n.OpenFile()
	if err != nil {
		return nil, err
	}
	return f, nil
}

// OpenFile returns the content of a file. The error is of kind Exhausted if the holes of all opened
// files exceed Options.Holes.
func (n *Inode) OpenFile() (*File, error) {
	if n.attr.Type != tree.File {
		return nil, turnstone.Errorf("ext4.open", turnstone.KindInvalid, "the sandbox's disk",
			"not a file")
	}
	m, err := n.mapping()
	if err != nil {
		return nil, err
	}
	f := &File{fs: n.fs, extents: m.extents, size: n.size}
	if m.first {
		if holes := n.size - f.allocated(); n.fs.holes.Add(holes) > n.fs.opts.Holes ||
			holes > n.fs.opts.Holes {
			n.fs.holes.Add(-holes)
			return nil, exhausted(
				"remove the largest sparse files, or make them smaller with truncate",
				"sparse files with holes of more than %s in total",
				turnstone.Bytes(n.fs.opts.Holes))
		}
	}
	return f, nil
}

// A File is the content of a file. ReadAt is safe for concurrent use, Read is not.
type File struct {
	fs      *FS
	extents []extent
	size    int64
	pos     int64
}

// Size returns the size in bytes.
func (f *File) Size() int64 { return f.size }

// Close does nothing.
func (f *File) Close() error { return nil }

// allocated returns the number of the file's bytes that are allocated on the disk.
func (f *File) allocated() (sum int64) {
	for _, e := range f.extents {
		start, end := int64(e.logical)*f.fs.blockSize, int64(e.logical+e.length)*f.fs.blockSize
		if start < f.size {
			sum += min(end, f.size) - start
		}
	}
	return sum
}

// Read implements io.Reader.
func (f *File) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.pos)
	f.pos += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// ReadAt implements io.ReaderAt. Holes and unwritten extents read as zeros.
func (f *File) ReadAt(b []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, errors.New("negative offset")
	}
	if off >= f.size {
		return 0, io.EOF
	}
	if int64(len(b)) > f.size-off {
		b, err = b[:f.size-off], io.EOF
	}
	bs := f.fs.blockSize
	// The first extent that ends after off.
	i := sort.Search(len(f.extents), func(i int) bool {
		return int64(f.extents[i].logical+f.extents[i].length)*bs > off
	})
	for n < len(b) {
		at := off + int64(n)
		rest := b[n:]
		if i == len(f.extents) {
			clear(rest)
			n += len(rest)
			break
		}
		e := f.extents[i]
		start, end := int64(e.logical)*bs, int64(e.logical+e.length)*bs
		if at < start { // a hole before the extent
			rest = rest[:min(int64(len(rest)), start-at)]
			clear(rest)
			n += len(rest)
			continue
		}
		rest = rest[:min(int64(len(rest)), end-at)]
		if e.start == 0 {
			clear(rest)
		} else if err := readFull(f.fs.r, rest, int64(e.start)*bs+at-start); err != nil {
			return n, err
		}
		n += len(rest)
		i++
	}
	return n, err
}

package lowerdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/erofs/go-erofs"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/substrate"
)

// writeImage writes the image of the difference between two trees to f, which must be empty, and
// extends it to the size of a slot. The zero Ref is the empty tree. The same input results in the
// same bytes; zeros in files become holes. id becomes the file system's UUID: an overlay tells the
// images of a stack apart by it.
//
// fs/ is an overlay's lower directory that turns from into to
// (Documentation/filesystems/overlayfs.rst): each entry that differs, its parent directories, a
// character device 0/0 for each removed name, and trusted.overlay.opaque on a directory that hides
// the lower directory. A changed hard-link group is written completely.
//
// Unsupported input is an error of kind Invalid; an image larger than a slot is an error of kind
// Exhausted.
func writeImage(ctx context.Context, r tree.Reader, from, to turnstone.TreeRef, id [16]byte,
	extra []File, f *os.File) error {
	top, links, err := plan(ctx, r, from, to, extra)
	if err != nil {
		return err
	}
	out := newSparseWriter(f)
	w := erofs.Create(out, erofs.WithBuildTime(0, 0))
	if err := w.CopyFrom(newFiles(ctx, r, top)); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	err = w.Close() // it reads the files' content
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		err = tar2erofs.JoinLinks(f, links)
	}
	if err == nil {
		err = tar2erofs.SetUUID(f, id)
	}
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	if out.end > substrate.SlotSize {
		return tooLarge()
	}
	return f.Truncate(substrate.SlotSize)
}

func tooLarge() error {
	return turnstone.Errorf("image.write", turnstone.KindExhausted, "image",
		"the files need more than %s", turnstone.Bytes(substrate.SlotSize)).
		WithHint("remove large files, or keep them outside of the sandbox")
}

// A sparseWriter writes a file and leaves blocks of zeros as holes. It joins small writes.
type sparseWriter struct {
	f   *os.File
	buf []byte // data for offset off that is not written yet
	off int64
	end int64 // the largest written offset
}

const (
	blockSize  = 4096
	bufferSize = 1 << 20
)

func newSparseWriter(f *os.File) *sparseWriter {
	return &sparseWriter{f: f, buf: make([]byte, 0, bufferSize)}
}

// Write implements io.Writer.
func (w *sparseWriter) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := copy(w.buf[len(w.buf):cap(w.buf)], p[n:])
		w.buf = w.buf[:len(w.buf)+k]
		n += k
		if len(w.buf) == cap(w.buf) {
			if err := w.Flush(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// Seek implements io.Seeker, from the start only.
func (w *sparseWriter) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart {
		return 0, errors.ErrUnsupported
	}
	err := w.Flush()
	w.off = offset
	return offset, err
}

// Flush writes the buffer, except aligned blocks of zeros.
func (w *sparseWriter) Flush() error {
	b, off := w.buf, w.off
	w.off += int64(len(b))
	w.end = max(w.end, w.off)
	w.buf = w.buf[:0]
	for len(b) > 0 {
		zeros, data := split(b, off)
		b, off = b[zeros:], off+int64(zeros)
		if data > 0 {
			if _, err := w.f.WriteAt(b[:data], off); err != nil {
				return err
			}
			b, off = b[data:], off+int64(data)
		}
	}
	return nil
}

// split returns the number of bytes of b, which belongs at off, in leading blocks of zeros, and the
// number of bytes after them to write.
func split(b []byte, off int64) (zeros, data int) {
	for zeros < len(b) && isHole(b[zeros:], off+int64(zeros)) {
		zeros += blockSize
	}
	for data = 0; zeros+data < len(b); {
		at := zeros + data
		if isHole(b[at:], off+int64(at)) {
			break
		}
		data += min(len(b)-at, blockSize-int((off+int64(at))%blockSize))
	}
	return zeros, data
}

// isHole reports whether b begins with a block of zeros.
func isHole(b []byte, off int64) bool {
	return off%blockSize == 0 && len(b) >= blockSize && b[0] == 0 &&
		bytes.Equal(b[1:blockSize], b[:blockSize-1])
}

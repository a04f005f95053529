package wire

import (
	"io"
	"sync"
)

// copySize is large because each read and write costs a frame and, on the sandbox's side, an exit
// from the virtual machine. It fills whole frames.
const copySize = 4 * SendChunk

var copyPool = sync.Pool{New: func() any { return new([copySize]byte) }}

// copyBuffer is io.Copy with a large buffer. It uses neither io.WriterTo nor io.ReaderFrom, which
// would use small buffers.
func copyBuffer(w io.Writer, r io.Reader) (int64, error) {
	buf := copyPool.Get().(*[copySize]byte)
	defer copyPool.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, buf[:])
}

// drainTo copies r to w until r ends; a nil w discards. When w fails, drainTo calls fail at once,
// continues to read and discards, so that the writer of r is not blocked. drainTo returns no error
// of r, which the call itself reports. The result is the number of bytes read.
func drainTo(w io.Writer, r io.Reader, fail func(error)) int64 {
	n, _ := copyBuffer(&failingWriter{w, fail}, r)
	return n
}

// failingWriter reports the first error of w and accepts everything after it.
type failingWriter struct {
	w    io.Writer
	fail func(error)
}

func (f *failingWriter) Write(p []byte) (int, error) {
	if f.w != nil {
		if _, err := f.w.Write(p); err != nil {
			f.w = nil
			f.fail(err)
		}
	}
	return len(p), nil
}

// tailWriter records whether the data ended in zeros, as every complete tar stream does: two blocks
// of 512 zero bytes (POSIX.1-2017, pax, ustar format).
type tailWriter struct {
	w     io.Writer
	err   error
	zeros int
}

func (t *tailWriter) Write(p []byte) (int, error) {
	n := len(p)
	for n > 0 && len(p)-n < 1024 && p[n-1] == 0 {
		n--
	}
	if n == 0 {
		t.zeros += len(p)
	} else {
		t.zeros = len(p) - n
	}
	var wrote int
	wrote, t.err = t.w.Write(p)
	return wrote, t.err
}

func (t *tailWriter) complete() bool { return t.zeros >= 1024 }

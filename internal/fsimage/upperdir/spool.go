package upperdir

import (
	"io"
	"os"
)

// spoolBuffer is the size of a write. There are many small files.
const spoolBuffer = 1 << 20

// A spoolWriter writes contents one after another.
type spoolWriter struct {
	f   *os.File
	may func() error // nil: always
	buf []byte
	off int64 // offset of buf
}

// end is the offset of the next byte.
func (w *spoolWriter) end() int64 { return w.off + int64(len(w.buf)) }

// room returns the buffer for the next bytes, whose number take then sets.
func (w *spoolWriter) room() ([]byte, error) {
	if len(w.buf) == cap(w.buf) {
		if err := w.flush(); err != nil {
			return nil, err
		}
	}
	return w.buf[len(w.buf):cap(w.buf)], nil
}

func (w *spoolWriter) take(n int) { w.buf = w.buf[:len(w.buf)+n] }

func (w *spoolWriter) flush() error {
	if w.may != nil && len(w.buf) > 0 {
		if err := w.may(); err != nil {
			return err
		}
	}
	if _, err := w.f.WriteAt(w.buf, w.off); err != nil {
		return unavailable(w.f.Name(), err)
	}
	w.off += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

// tarEnd is the number of zero bytes at the end of a tar stream, and padding the maximum number
// after a file.
const (
	tarEnd  = 1024
	padding = 511
)

// A counter counts the bytes that are read through it, keeps the last of them, and remembers the
// error that ended reading.
type counter struct {
	r    io.Reader
	n    int64
	last [tarEnd]byte
	err  error
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n < tarEnd {
		copy(c.last[:], c.last[n:])
		copy(c.last[tarEnd-n:], p[:n])
	} else {
		copy(c.last[:], p[n-tarEnd:n])
	}
	c.n += int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}

// ended reports whether the only data since before, the end of the last entry, is a tar stream's
// end.
func (c *counter) ended(before int64) bool {
	return c.n-before >= tarEnd && c.n-before <= tarEnd+padding && c.last == [tarEnd]byte{}
}

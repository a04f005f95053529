package upper

import (
	"io"
	"os"
)

// spoolBuffer is how much is written at a time. Small files are many.
const spoolBuffer = 1 << 20

// A spoolWriter writes contents one after another.
type spoolWriter struct {
	f   *os.File
	buf []byte
	off int64 // of what is in buf
}

// end is where the next byte will be.
func (w *spoolWriter) end() int64 { return w.off + int64(len(w.buf)) }

func (w *spoolWriter) write(b []byte) error {
	for len(b) > 0 {
		n := copy(w.buf[len(w.buf):cap(w.buf)], b)
		w.buf = w.buf[:len(w.buf)+n]
		b = b[n:]
		if len(w.buf) == cap(w.buf) {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *spoolWriter) flush() error {
	if _, err := w.f.WriteAt(w.buf, w.off); err != nil {
		return unavailable(w.f.Name(), err)
	}
	w.off += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

// A counter counts what is read through it, and remembers why that ended.
type counter struct {
	r   io.Reader
	n   int64
	err error
}

// Read implements io.Reader.
func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}

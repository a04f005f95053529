package upperdir

import (
	"io"
	"os"
)

// spoolBuffer is how much is written at a time. Small files are many.
const spoolBuffer = 1 << 20

// A spoolWriter writes contents one after another.
type spoolWriter struct {
	f   *os.File
	may func() error // nil: always
	buf []byte
	off int64 // of what is in buf
}

// end is where the next byte will be.
func (w *spoolWriter) end() int64 { return w.off + int64(len(w.buf)) }

// room returns where the next bytes go, which take then says there are.
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

// tarEnd is how many bytes of zeros a tar stream ends with, and padding how many there
// may be behind a file.
const (
	tarEnd  = 1024
	padding = 511
)

// A counter counts what is read through it, keeps the last of it, and remembers why
// that ended.
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

// ended says that a tar stream's end is all that has come since before, when its
// last entry had been read.
func (c *counter) ended(before int64) bool {
	return c.n-before >= tarEnd && c.n-before <= tarEnd+padding && c.last == [tarEnd]byte{}
}

package archive

import (
	"bytes"
	"io"
	"os"
)

// holeSize is the least run of zeros that becomes a hole.
const holeSize = 4096

var zeros [holeSize]byte

// A sparseWriter writes a file and leaves holes where it is zero: a file that is
// sparse at its source does not fill the disk here.
type sparseWriter struct {
	f    *os.File
	take func(n int64) error // is asked before n bytes take up room
	at   int64               // where the next byte goes
}

// copy writes all of r, by way of buf. It fills buf before it writes: blocks of p
// are then blocks of the file, however little r yields at a time.
func (w *sparseWriter) copy(r io.Reader, buf []byte) error {
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := w.write(buf[:n]); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF: // the caller knows how much there has to be
			return nil
		default:
			return err
		}
	}
}

func (w *sparseWriter) write(p []byte) error {
	for done := 0; done < len(p); {
		end, hole := done, isZero(p[done:])
		for end < len(p) && isZero(p[end:]) == hole {
			end = min(end+holeSize, len(p))
		}
		if !hole {
			if err := w.take(int64(end - done)); err != nil {
				return err
			}
			if _, err := w.f.WriteAt(p[done:end], w.at); err != nil {
				return err
			}
		}
		w.at += int64(end - done)
		done = end
	}
	return nil
}

// isZero says whether p's first block is all zeros.
func isZero(p []byte) bool {
	n := min(len(p), holeSize)
	return bytes.Equal(p[:n], zeros[:n])
}

// finish gives the file its length, because it may end in a hole.
func (w *sparseWriter) finish() error { return w.f.Truncate(w.at) }

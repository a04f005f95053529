package tarfiles

import (
	"bytes"
	"io"
	"os"
)

// holeSize is the minimum run of zeros that becomes a hole.
const holeSize = 4096

var zeros [holeSize]byte

// A sparseWriter writes a file with holes for zeros, so that a sparse file does not fill the disk.
type sparseWriter struct {
	f    *os.File
	take func(n int64) error // called before n bytes use space
	at   int64               // offset of the next byte
}

// copy writes all of r through buf. It fills buf before writing, so that blocks of p match blocks
// of the file for any read size of r.
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
		case io.EOF, io.ErrUnexpectedEOF: // the caller checks the length
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

// isZero reports whether p's first block is all zeros.
func isZero(p []byte) bool {
	n := min(len(p), holeSize)
	return bytes.Equal(p[:n], zeros[:n])
}

// finish sets the file's length because the file may end in a hole.
func (w *sparseWriter) finish() error { return w.f.Truncate(w.at) }

// Package sparse reads and writes files with holes: runs of zeros that use no space.
package sparse

import (
	"bytes"
	"io"
	"os"
	"slices"
)

// block is the minimum run of zeros that becomes a hole, in bytes.
const block = 4096

var zeros [block]byte

// A Writer writes a new file, with holes for blocks of zeros. Its methods are not safe for concurrent use.
type Writer struct {
	File *os.File
	// Take is called before bytes are written, or left out because they are zeros; its error ends the
	// write. Nil: nothing is called.
	Take func(n int64, hole bool) error

	size int64 // so far
}

// CopyFrom writes all of r through buf, and sets the file's length, because the file may end in a hole.
// It fills buf before writing, so that blocks of r match blocks of the file for any read size of r.
func (w *Writer) CopyFrom(r io.Reader, buf []byte) (int64, error) {
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := w.write(buf[:n]); err != nil {
				return w.size, err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return w.size, w.File.Truncate(w.size)
		default:
			return w.size, err
		}
	}
}

func (w *Writer) write(p []byte) error {
	for done := 0; done < len(p); {
		end, hole := done, isZero(p[done:])
		for end < len(p) && isZero(p[end:]) == hole {
			end = min(end+block, len(p))
		}
		if w.Take != nil {
			if err := w.Take(int64(end-done), hole); err != nil {
				return err
			}
		}
		if !hole {
			if _, err := w.File.WriteAt(p[done:end], w.size); err != nil {
				return err
			}
		}
		w.size += int64(end - done)
		done = end
	}
	return nil
}

// isZero reports whether p's first block is all zeros.
func isZero(p []byte) bool {
	n := min(len(p), block)
	return bytes.Equal(p[:n], zeros[:n])
}

// A Part is a run of bytes of a file that is no hole.
type Part struct{ Offset, Length int64 }

// least is the size of the smallest hole that Parts looks for, in bytes.
const least = 64 << 10

// Parts returns at most most parts, two or more, of the first size bytes of f that are not holes, in their
// order. Small holes belong to parts, and so do all holes where the file system or the system does not tell
// them. It moves f's offset.
func Parts(f *os.File, size int64, most int) []Part {
	whole := []Part{{0, size}}
	if size < least {
		return whole
	}
	var parts []Part
	for off := int64(0); off < size; {
		data, end, err := Next(f, off)
		if err != nil {
			return whole
		}
		if data == end || data >= size {
			break
		}
		parts = add(parts, Part{data, min(end, size) - data})
		if len(parts) > most {
			parts = halve(parts)
		}
		off = end
	}
	return edges(parts, size)
}

// gap returns the size of the hole between two parts.
func gap(a, b Part) int64 { return b.Offset - (a.Offset + a.Length) }

// join returns two parts, with the hole between them, as one.
func join(a, b Part) Part { return Part{a.Offset, b.Offset + b.Length - a.Offset} }

// add adds a part, and joins it with the last one if the hole between them is small.
func add(parts []Part, p Part) []Part {
	if n := len(parts); n > 0 && gap(parts[n-1], p) < least {
		parts[n-1] = join(parts[n-1], p)
		return parts
	}
	return append(parts, p)
}

// halve joins parts around the smaller half of the holes.
func halve(parts []Part) []Part {
	var holes []int64
	for i := range parts[1:] {
		holes = append(holes, gap(parts[i], parts[i+1]))
	}
	slices.Sort(holes)
	small, left := holes[len(holes)/2], len(parts)/2
	joined := parts[:1]
	for _, p := range parts[1:] {
		last := &joined[len(joined)-1]
		if left > 0 && gap(*last, p) <= small {
			*last = join(*last, p)
			left--
			continue
		}
		joined = append(joined, p)
	}
	return joined
}

// edges joins small holes at the beginning and the end of a file with its parts.
func edges(parts []Part, size int64) []Part {
	if len(parts) == 0 {
		return parts
	}
	if first := &parts[0]; first.Offset < least {
		*first = join(Part{}, *first)
	}
	if last := &parts[len(parts)-1]; size-(last.Offset+last.Length) < least {
		last.Length = size - last.Offset
	}
	return parts
}

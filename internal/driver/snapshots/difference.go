package snapshots

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/disk"
)

// pageSize is the page size of x86-64, in bytes. Memory is compared page by page.
const pageSize = 4096

// A difference turns one file into another: its runs are stored one after the other in a separate
// file.
type difference struct {
	Size int64            `json:"size"` // size of the resulting file
	Runs [][2]int64       `json:"runs"` // offset and length, ascending
	Data turnstone.Digest `json:"data"`
}

// check checks that the runs are in order and within the file.
func (d difference) check() error {
	if d.Size < 0 {
		return fmt.Errorf("a size of %d bytes", d.Size)
	}
	before := int64(0)
	for _, r := range d.Runs {
		if r[0] < before || r[1] <= 0 || r[0] > d.Size-r[1] {
			return fmt.Errorf("a run of %d bytes at %d, after %d of %d", r[1], r[0], before,
				d.Size)
		}
		before = r[0] + r[1]
	}
	return nil
}

// diffFile is diff to the file at the path to.
func diffFile(ctx context.Context, from *os.File, to, path string) (difference, error) {
	f, err := os.Open(to)
	if err != nil {
		return difference{}, err
	}
	defer f.Close()
	return diff(ctx, from, f, path)
}

// diff writes the parts of to that differ from from to a new file at path. Both may have holes,
// which are zeros and are not read; a nil from is all zeros.
func diff(ctx context.Context, from, to *os.File, path string) (d difference, err error) {
	st, err := to.Stat()
	if err != nil {
		return d, err
	}
	d.Size = st.Size()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &packWriter{d: &d, out: bufio.NewWriterSize(f, 1<<20), sum: sha256.New()}
	for at := int64(0); ; {
		begin, end, err := nextData(at, d.Size, from, to)
		if err != nil {
			return d, err
		}
		if begin == end {
			break
		}
		if err := ctx.Err(); err != nil {
			return d, err
		}
		if err := w.compare(from, to, begin, end); err != nil {
			return d, err
		}
		at = end
	}
	d.Data = turnstone.Digest("sha256:" + hex.EncodeToString(w.sum.Sum(nil)))
	return d, w.out.Flush()
}

// comparePart is the number of bytes of two files that are compared at a time.
const comparePart = 1 << 20

// nextData returns the next run, of at most comparePart bytes, in which one of the files may be
// non-zero; an empty run at the end.
func nextData(at, size int64, files ...*os.File) (begin, end int64, err error) {
	begin = size
	for _, f := range files {
		if f == nil {
			continue
		}
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("seek: %w", err)
		}
		begin = min(begin, data)
	}
	if begin >= size {
		return size, size, nil
	}
	begin = begin / pageSize * pageSize
	return begin, min(size, begin+comparePart), nil
}

// A packWriter writes the pages that differ.
type packWriter struct {
	d    *difference
	out  *bufio.Writer
	sum  hash.Hash
	a, b [comparePart]byte
}

func (w *packWriter) compare(from, to *os.File, begin, end int64) error {
	a, b := w.a[:end-begin], w.b[:end-begin]
	clear(a) // from may be shorter
	if from != nil {
		if _, err := from.ReadAt(a, begin); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	if _, err := io.ReadFull(io.NewSectionReader(to, begin, end-begin), b); err != nil {
		return err
	}
	for at := 0; at < len(b); at += pageSize {
		page := b[at:min(at+pageSize, len(b))] // a disk's size need not be a multiple of a page
		if bytes.Equal(a[at:at+len(page)], page) {
			continue
		}
		offset := begin + int64(at)
		if n := len(w.d.Runs) - 1; n >= 0 && w.d.Runs[n][0]+w.d.Runs[n][1] == offset {
			w.d.Runs[n][1] += int64(len(page))
		} else {
			w.d.Runs = append(w.d.Runs, [2]int64{offset, int64(len(page))})
		}
		_, _ = w.sum.Write(page)
		if _, err := w.out.Write(page); err != nil {
			return err
		}
	}
	return nil
}

// A part is a difference with its bytes.
type part struct {
	difference
	data io.Reader
}

// patch creates a file at path from base, nil for zeros, with the parts applied in order. All parts
// are for files of size bytes.
func patch(ctx context.Context, base *os.File, path string, size int64, parts ...part) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if base != nil {
		if err := disk.Clone(ctx, f, base); err != nil {
			return err
		}
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	for _, p := range parts {
		if p.Size != size {
			return fmt.Errorf("it has %d bytes, the machine %d", p.Size, size)
		}
		if err := p.write(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// write writes the runs to f.
func (p part) write(ctx context.Context, f *os.File) error {
	sum, buf := sha256.New(), make([]byte, comparePart)
	r := io.TeeReader(p.data, sum)
	for _, run := range p.Runs {
		for at, end := run[0], run[0]+run[1]; at < end; {
			if err := ctx.Err(); err != nil {
				return err
			}
			b := buf[:min(int64(len(buf)), end-at)]
			if _, err := io.ReadFull(r, b); err != nil {
				return noEOF(err)
			}
			if _, err := f.WriteAt(b, at); err != nil {
				return err
			}
			at += int64(len(b))
		}
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(r, 1)); err != nil || n > 0 {
		return errors.Join(errors.New("there are more bytes than the manifest says"), err)
	}
	if got := turnstone.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))); got != p.Data {
		return fmt.Errorf("it is %s instead of %s", got.Short(), p.Data.Short())
	}
	return nil
}

// noEOF replaces an early EOF by an error that says so.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

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
	"turnstone.dev/turnstone/substrate/disk"
)

// pageSize is that of x86-64, in bytes. Memory is compared page by page.
const pageSize = 4096

// A difference is what makes one file of another: stretches, whose bytes are one
// behind the other in a file of their own.
type difference struct {
	Size int64            `json:"size"` // of the file that it makes
	Runs [][2]int64       `json:"runs"` // offset and length, ascending
	Data turnstone.Digest `json:"data"`
}

// check says whether the stretches are in order and within the file.
func (d difference) check() error {
	if d.Size < 0 {
		return fmt.Errorf("a size of %d bytes", d.Size)
	}
	before := int64(0)
	for _, r := range d.Runs {
		if r[0] < before || r[1] <= 0 || r[0] > d.Size-r[1] {
			return fmt.Errorf("a stretch of %d bytes at %d, behind %d of %d", r[1], r[0], before, d.Size)
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
	defer func() { _ = f.Close() }()
	return diff(ctx, from, f, path)
}

// diff writes what to has in another way than from to a new file at path. Both may
// have holes, which are zeros, and are not read.
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

// comparePart is how much of two files is compared at a time.
const comparePart = 1 << 20

// nextData returns the next stretch, of at most comparePart, in which one of the
// files may be something else than zeros; an empty one at the end.
func nextData(at, size int64, files ...*os.File) (begin, end int64, err error) {
	begin = size
	for _, f := range files {
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
	if _, err := from.ReadAt(a, begin); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := io.ReadFull(io.NewSectionReader(to, begin, end-begin), b); err != nil {
		return err
	}
	for at := 0; at < len(b); at += pageSize {
		page := b[at:min(at+pageSize, len(b))] // a disk's size may be anything
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

// patchFile is patch, of a file that nobody needs open.
func patchFile(ctx context.Context, base *os.File, d difference, data, path string, size int64) error {
	f, err := patch(ctx, base, d, data, path, size)
	if err != nil {
		return err
	}
	return f.Close()
}

// patch makes a file at path of base and d, whose bytes are in the file data.
func patch(ctx context.Context, base *os.File, d difference, data, path string, size int64) (out *os.File, err error) {
	if d.Size != size {
		return nil, fmt.Errorf("it has %d bytes, the machine %d", d.Size, size)
	}
	in, err := os.Open(data)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := disk.Clone(ctx, f, base); err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	sum := sha256.New()
	r := io.TeeReader(bufio.NewReaderSize(in, 1<<20), sum)
	for _, run := range d.Runs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := io.CopyN(io.NewOffsetWriter(f, run[0]), r, run[1]); err != nil {
			return nil, err
		}
	}
	if n, err := io.Copy(io.Discard, io.LimitReader(r, 1)); err != nil || n > 0 {
		return nil, errors.Join(errors.New("there are more bytes than the manifest says"), err)
	}
	if got := turnstone.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))); got != d.Data {
		return nil, fmt.Errorf("it is %s instead of %s", got.Short(), d.Data.Short())
	}
	return f, nil
}

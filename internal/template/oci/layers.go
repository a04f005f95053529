package oci

import (
	"archive/tar"
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
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"turnstone.dev/turnstone"
)

// maxWindow bounds the memory for unpacking zstd, in bytes: the use of its strongest level of
// compression.
const maxWindow = 128 << 20

// A stream is a layer's tar stream, read from its blob.
type stream struct {
	*tar.Reader
	entries int32 // that were read

	plain  *bounded // the whole tar stream
	packed io.Reader
	close  func()
}

// openLayer reads a layer from its beginning. It detects the compression by the first bytes,
// because manifests are not always correct. hashes, which may be nil, get the blob's bytes and the
// tar stream's.
func openLayer(ctx context.Context, f *os.File, size int64, packedSum,
	plainSum hash.Hash) (*stream, error) {
	var in io.Reader = &cancelable{ctx, io.NewSectionReader(f, 0, size)}
	if packedSum != nil {
		in = io.TeeReader(in, packedSum)
	}
	buf := bufio.NewReaderSize(in, 128<<10)
	s := &stream{packed: buf, close: func() {}}
	plain := io.Reader(buf)
	switch magic, _ := buf.Peek(4); {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(buf)
		if err != nil {
			return nil, packing(err)
		}
		plain = z
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(buf, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, packing(err)
		}
		plain, s.close = z, z.Close
	}
	s.plain = &bounded{r: plain, left: freeUnpacked + maxRatio*size, sum: plainSum}
	s.Reader = tar.NewReader(s.plain)
	return s, nil
}

func packing(err error) error { return unusable("", "it cannot be unpacked: %v", err) }

// next returns the next entry's header and its number.
func (s *stream) next() (*tar.Header, int32, error) {
	hdr, err := s.Next()
	if err != nil {
		return nil, 0, err
	}
	s.entries++
	return hdr, s.entries - 1, nil
}

// drain reads the data after the last entry, which the digests cover too.
func (s *stream) drain() error {
	if _, err := io.Copy(io.Discard, s.plain); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, s.packed)
	return err
}

// errBomb reports a layer with an excessive compression ratio.
var errBomb = &contentError{
	why: fmt.Sprintf("it is more than %d times as large unpacked as packed: a decompression bomb",
		maxRatio)}

// bounded passes on at most left bytes.
type bounded struct {
	r    io.Reader
	left int64
	n    int64 // bytes that it passed on
	sum  hash.Hash
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errBomb
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	b.n += int64(n)
	if b.sum != nil {
		_, _ = b.sum.Write(p[:n]) // a hash accepts every write
	}
	return n, err
}

// cancelable ends with ctx.
type cancelable struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// scan applies a layer to the tree, and verifies it.
func (t *fsTree) scan(ctx context.Context, f *os.File, layer Layer, unpacked *int64) error {
	t.layer++
	packed, plain := sha256.New(), sha256.New()
	s, err := openLayer(ctx, f, layer.Size, packed, plain)
	if err == nil {
		defer s.close()
		err = t.read(s, layer.Size, unpacked)
	}
	if err == nil {
		err = s.drain()
	}
	// A damaged blob causes many errors: only its digest identifies the cause.
	if ctx.Err() == nil &&
		(err != nil || hex.EncodeToString(packed.Sum(nil)) != layer.Digest.Hex()) {
		if e := verify(f, layer); e != nil {
			return e
		}
	}
	switch {
	case err != nil:
		return err
	case hex.EncodeToString(plain.Sum(nil)) != layer.DiffID.Hex():
		return mismatch("its content has the digest sha256:%.12s…, and not %s as its config says",
			hex.EncodeToString(plain.Sum(nil)), layer.DiffID.Short())
	}
	return nil
}

// errDamaged reports a blob that changed on the disk.
type errDamaged struct{ d turnstone.Digest }

func (e *errDamaged) Error() string { return e.d.Short() + " is damaged on this machine's disk" }

// verify compares a whole blob with its digest.
func verify(f *os.File, layer Layer) error {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, layer.Size)); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != layer.Digest.Hex() {
		return &errDamaged{layer.Digest}
	}
	return nil
}

// looked are the files that are inspected, and their maximum sizes in bytes.
func looked(name string) int64 {
	switch name {
	case "etc/passwd", "etc/group":
		return 1 << 20
	case "var/lib/dpkg/status":
		return 64 << 20
	}
	return 0
}

// read applies the entries of a layer.
func (t *fsTree) read(s *stream, packed int64, unpacked *int64) error {
	budget := freeUnpacked + maxRatio*packed
	for {
		hdr, entry, err := s.next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return tarError(err)
		}
		// A sparse file is larger than its data in the stream.
		if budget -= hdr.Size; budget < 0 {
			return errBomb
		}
		if *unpacked += hdr.Size; *unpacked > maxUnpacked {
			return unusable("", "its files have more than %s", turnstone.Bytes(maxUnpacked).Human())
		}
		file, err := t.apply(hdr, entry)
		if err != nil {
			var content *contentError
			if errors.As(err, &content) {
				return err
			}
			return unusable("", "its entry %.200q %v", hdr.Name, err)
		}
		if file == nil || file.kind != tar.TypeReg {
			continue
		}
		if most := looked(tidy(hdr.Name)); most >= hdr.Size && most > 0 {
			if file.kept, err = io.ReadAll(s); err != nil {
				return tarError(err)
			}
		}
	}
}

// tarError distinguishes an unreadable stream from unacceptable content.
func tarError(err error) error {
	var content *contentError
	if errors.As(err, &content) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return packing(err)
}

// tidy returns a path in the form of looked's keys.
func tidy(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

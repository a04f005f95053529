package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// Paths in a client's folder:
//
//	blobs/<hex>        a download with that digest
//	partial/<hex>      a download in progress, or one that a crash interrupted
//	locks/<hex>.lock   held during the download
//	anonymous/         the same, for anonymous clients
//
// A digest alone grants no access to its content: a stranger's manifest could name a layer that was
// downloaded with the user's credentials. So an anonymous client reads only blobs that registries
// served without credentials.
func (c *Client) makeDirs() error {
	for _, sub := range []string{"blobs", "partial", "locks"} {
		if err := os.MkdirAll(c.path(sub), 0o700); err != nil {
			return turnstone.NewError("oci.cache", turnstone.KindUnavailable, c.opts.Dir, err).
				WithHint("set TURN_HOME to a folder that you may write")
		}
	}
	return nil
}

// blob returns the blob of digest d, open for reading. It downloads the blob unless it is cached. A
// cached blob was verified when it was downloaded: its reader verifies it again. got receives the
// number of bytes as they arrive, and the size of a cached blob.
func (s *session) blob(ctx context.Context, d turnstone.Digest, size int64,
	got *atomic.Int64) (f *os.File, kept bool, err error) {
	c := s.c
	if f := c.kept(d, size); f != nil {
		got.Add(size)
		return f, true, nil
	}
	if err := c.makeDirs(); err != nil {
		return nil, false, err
	}
	lockPath := c.path("locks", d.Hex()+".lock")
	lock, err := statedir.Acquire(ctx, lockPath,
		func() { c.opts.Progress("waiting for another process that pulls a part of the image") })
	if err != nil {
		return nil, false, err
	}
	defer lock.Release()
	defer os.Remove(lockPath) // a waiting process notices the removal, and creates another
	if f := c.kept(d, size); f != nil {
		got.Add(size)
		return f, true, nil
	}
	if err := s.download(ctx, d, size, got); err != nil {
		return nil, false, err
	}
	if err := os.Rename(c.path("partial", d.Hex()), c.path("blobs", d.Hex())); err != nil {
		return nil, false, err
	}
	if f = c.kept(d, size); f == nil {
		return nil, false, fmt.Errorf("%s was removed immediately after its download", d.Short())
	}
	return f, false, nil
}

// kept opens a cached blob; nil if there is none, or if it is obviously damaged.
func (c *Client) kept(d turnstone.Digest, size int64) *os.File {
	path := c.path("blobs", d.Hex())
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() != size {
		_ = f.Close()
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // recently used blobs are evicted last
	return f
}

// download completes partial/<hex>, from its current end, and verifies it.
func (s *session) download(ctx context.Context, d turnstone.Digest, size int64,
	got *atomic.Int64) error {
	f, err := os.OpenFile(s.c.path("partial", d.Hex()),
		os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	p := &part{file: f, want: d, size: size, got: got}
	if err := p.begin(); err != nil {
		return err
	}
	if err := room(f, size-p.have); err != nil {
		return err
	}
	again := p.have > 0 // after a crash the content may differ from the written data
	for {
		err := s.c.retry(ctx, func(ctx context.Context) (bool, error) {
			had := p.have
			err := s.fetch(ctx, p)
			return p.have > had, err
		})
		if err == nil {
			err = p.verify()
		}
		var wrong *integrityError
		if !errors.As(err, &wrong) {
			return err
		}
		if e := p.restart(); e != nil {
			return errors.Join(err, e)
		}
		if !again {
			return errors.Join(err, os.Remove(f.Name()))
		}
		again = false
	}
}

// fetch requests the missing part of p and writes the received data.
func (s *session) fetch(ctx context.Context, p *part) error {
	if p.have == p.size {
		return nil
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	url := fmt.Sprintf("%s://%s/v2/%s/blobs/%s", s.ref.repo.Scheme(), s.ref.repo.RegistryStr(),
		s.ref.repo.RepositoryStr(), p.want)
	req, err := http.NewRequestWithContext(context.WithValue(ctx, blobKey{}, true), http.MethodGet, url,
		nil)
	if err != nil {
		return err
	}
	if p.have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", p.have))
	}
	var came atomic.Int64
	defer watch(&came, s.c.opts.Stall, func() { stop(errStalled) })()
	resp, err := s.http.Do(req)
	if err != nil {
		return stalled(ctx, err)
	}
	defer resp.Body.Close()
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent,
		http.StatusRequestedRangeNotSatisfiable); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusPartialContent ||
		!startsAt(resp.Header.Get("Content-Range"), p.have) {
		if p.have > 0 {
			if err := p.restart(); err != nil {
				return err
			}
		}
		if resp.StatusCode != http.StatusOK {
			return io.ErrUnexpectedEOF // no such range: retry from the start
		}
	}
	return stalled(ctx, p.fill(resp.Body, &came))
}

// startsAt reports whether a Content-Range (RFC 9110, 14.4) begins at the offset.
func startsAt(header string, offset int64) bool {
	rest, ok := strings.CutPrefix(header, "bytes ")
	first, _, dash := strings.Cut(rest, "-")
	n, err := strconv.ParseInt(first, 10, 64)
	return ok && dash && err == nil && n == offset
}

// watch calls stop when fewer than minRate bytes arrive within patience, until its result is
// called.
func watch(came *atomic.Int64, patience time.Duration, stop func()) (done func()) {
	end := make(chan struct{})
	go func() {
		tick := time.NewTicker(patience)
		defer tick.Stop()
		for last := int64(0); ; {
			select {
			case <-end:
				return
			case <-tick.C:
				now := came.Load()
				if now-last < minRate {
					stop()
					return
				}
				last = now
			}
		}
	}()
	return func() { close(end) }
}

// minRate is the minimum number of bytes within Options.Stall.
const minRate = 64 << 10

// A part is a blob whose download is in progress.
type part struct {
	file *os.File
	want turnstone.Digest
	size int64
	have int64
	sum  interface {
		io.Writer
		Sum([]byte) []byte
	}
	got *atomic.Int64
}

// begin reads the bytes that already exist.
func (p *part) begin() error {
	p.sum = sha256.New()
	fi, err := p.file.Stat()
	if err != nil {
		return err
	}
	if fi.Size() > p.size {
		return p.restart()
	}
	n, err := io.Copy(p.sum, p.file)
	p.have = n
	p.got.Add(n)
	return err
}

func (p *part) restart() error {
	p.got.Add(-p.have)
	p.have, p.sum = 0, sha256.New()
	_, err := p.file.Seek(0, io.SeekStart)
	return errors.Join(err, p.file.Truncate(0))
}

// fill appends r's data to the part.
func (p *part) fill(r io.Reader, came *atomic.Int64) error {
	buf := make([]byte, 128<<10)
	for p.have < p.size {
		n, err := r.Read(buf)
		came.Add(int64(n))
		if int64(n) > p.size-p.have {
			return mismatch("%s is longer than the %d bytes in the image's manifest",
				p.want.Short(), p.size)
		}
		if n > 0 {
			if _, err := p.file.Write(buf[:n]); err != nil {
				return err
			}
			_, _ = p.sum.Write(buf[:n]) // a hash accepts every write
			p.have += int64(n)
			p.got.Add(int64(n))
		}
		if err == io.EOF && p.have < p.size {
			return io.ErrUnexpectedEOF
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
	return nil
}

func (p *part) verify() error {
	if got := hex.EncodeToString(p.sum.Sum(nil)); got != p.want.Hex() {
		return mismatch("%s came with the digest sha256:%.12s…", p.want.Short(), got)
	}
	return p.file.Sync()
}

// room rejects n bytes for which the disk of f has no space.
func room(f *os.File, size int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return nil // the write reports it
	}
	if free := int64(st.Bavail) * st.Bsize; size > free {
		return turnstone.Errorf("oci.pull", turnstone.KindExhausted, filepath.Dir(f.Name()),
			"%s are needed, and %s are free", turnstone.Bytes(size).Human(),
			turnstone.Bytes(free).Human()).
			WithHint("free some disk space, or move TURN_HOME")
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

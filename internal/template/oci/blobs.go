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

// Where a client's folder has what:
//
//	blobs/<hex>        what was downloaded and had that digest
//	partial/<hex>      what is being downloaded, or was when the power failed
//	locks/<hex>.lock   held while it is
//	anonymous/         the same, of anonymous clients
//
// A digest alone is no right to what it is of: a stranger's manifest could name a layer
// that came with the user's credentials. So an anonymous client reads only what registries
// gave to somebody unknown.
func (c *Client) makeDirs() error {
	for _, sub := range []string{"blobs", "partial", "locks"} {
		if err := os.MkdirAll(c.path(sub), 0o700); err != nil {
			return turnstone.NewError("oci.cache", turnstone.KindUnavailable, c.opts.Dir, err).
				WithHint("set TURN_HOME to a folder that you may write")
		}
	}
	return nil
}

// blob returns the blob of digest d, open for reading, which is downloaded unless it is
// kept. One that was kept has been verified when it came: who reads it verifies it
// once more. got is told of bytes as they come, and of all of a kept one's.
func (s *session) blob(ctx context.Context, d turnstone.Digest, size int64, got *atomic.Int64) (f *os.File, kept bool, err error) {
	c := s.c
	if f := c.kept(d, size); f != nil {
		got.Add(size)
		return f, true, nil
	}
	if err := c.makeDirs(); err != nil {
		return nil, false, err
	}
	lockPath := c.path("locks", d.Hex()+".lock")
	lock, err := statedir.Acquire(ctx, lockPath, func() { c.opts.Progress("waiting for another process that pulls a part of the image") })
	if err != nil {
		return nil, false, err
	}
	defer lock.Release()
	defer os.Remove(lockPath) // who waits for it sees that it is gone, and makes another
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
		return nil, false, fmt.Errorf("%s was removed as soon as it was there", d.Short())
	}
	return f, false, nil
}

// kept opens a blob that is kept; nil if it is not, or is damaged at first sight.
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
	_ = os.Chtimes(path, now, now) // what is used last is kept longest
	return f
}

// download brings partial/<hex> to its full size, from where it was left, and verifies it.
func (s *session) download(ctx context.Context, d turnstone.Digest, size int64, got *atomic.Int64) error {
	f, err := os.OpenFile(s.c.path("partial", d.Hex()), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
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
	again := p.have > 0 // what a crash left may not be what was written
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

// fetch asks for what is missing of p and writes what comes.
func (s *session) fetch(ctx context.Context, p *part) error {
	if p.have == p.size {
		return nil
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	url := fmt.Sprintf("%s://%s/v2/%s/blobs/%s", s.ref.repo.Scheme(), s.ref.repo.RegistryStr(), s.ref.repo.RepositoryStr(), p.want)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
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
	if err := transport.CheckError(resp, http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusPartialContent || !startsAt(resp.Header.Get("Content-Range"), p.have) {
		if p.have > 0 {
			if err := p.restart(); err != nil {
				return err
			}
		}
		if resp.StatusCode != http.StatusOK {
			return io.ErrUnexpectedEOF // it has no such range: once more, from the start
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

// watch calls stop when fewer than minRate bytes come in a time of patience, until its
// result is called.
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

// minRate is what has to come within Options.Stall, in bytes.
const minRate = 64 << 10

// A part is a blob that is being downloaded.
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

// begin reads what is there already.
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

// fill writes what r gives to the end of the part.
func (p *part) fill(r io.Reader, came *atomic.Int64) error {
	buf := make([]byte, 128<<10)
	for p.have < p.size {
		n, err := r.Read(buf)
		came.Add(int64(n))
		if int64(n) > p.size-p.have {
			return mismatch("%s is longer than the %d bytes that the image's manifest says", p.want.Short(), p.size)
		}
		if n > 0 {
			if _, err := p.file.Write(buf[:n]); err != nil {
				return err
			}
			_, _ = p.sum.Write(buf[:n]) // a hash takes every write
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

// room refuses what the disk of f has no room for.
func room(f *os.File, size int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return nil // who writes will see
	}
	if free := int64(st.Bavail) * st.Bsize; size > free {
		return turnstone.Errorf("oci.pull", turnstone.KindExhausted, filepath.Dir(f.Name()),
			"%s are needed, and %s are free", turnstone.Bytes(size).Human(), turnstone.Bytes(free).Human()).
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

package registry

import (
	"context"
	"crypto/sha1" //nolint:gosec // npm's oldest packages have no other digest
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
)

// Bounds of downloads, in bytes.
const (
	maxFile  = 4 << 30
	maxIndex = 64 << 20
)

// A want is the expected digest of a file: "sha256:" or "sha512:" or "sha1:" and hex. Empty:
// unknown.
type want string

func (d want) hash() hash.Hash {
	switch name, _, _ := strings.Cut(string(d), ":"); name {
	case "sha512":
		return sha512.New()
	case "sha1":
		return sha1.New() //nolint:gosec // see above
	default:
		return sha256.New()
	}
}

// of returns h's digest, in d's form.
func (d want) of(h hash.Hash) want {
	name, _, ok := strings.Cut(string(d), ":")
	if !ok {
		name = "sha256"
	}
	return want(name + ":" + hex.EncodeToString(h.Sum(nil)))
}

// key is the name in the cache of the file with this digest.
func (d want) key() string { return strings.Replace(string(d), ":", "-", 1) }

// errStatus is an unexpected status of a response.
type errStatus struct {
	code int
	text string
}

func (e *errStatus) Error() string { return "the server answered " + e.text }

// file returns the path of the content of address, in the cache. want is its digest, key its name
// there. Concurrent calls fetch it once.
func (s *Server) file(ctx context.Context, address, key string, d want) (string, error) {
	at := filepath.Join(s.opts.Cache, key)
	// The first caller may give up: other callers, and the next build, still need the file.
	done := s.flights.DoChan(key,
		func() (any, error) { return nil, s.intoCache(s.ctx, address, at, d) })
	select {
	case result := <-done:
		return at, result.Err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// intoCache ensures that the file at has the digest d.
func (s *Server) intoCache(ctx context.Context, address, at string, d want) error {
	if cached(at, d) {
		return nil
	}
	part, err := os.OpenFile(at+".part", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return storeError(at, err)
	}
	defer part.Close()
	// Another process that fetches the same file holds its lock.
	if err := lock(ctx, part); err != nil {
		return err
	}
	if whole(at, d) {
		return nil
	}
	got, err := s.download(ctx, address, part, d)
	if err != nil {
		return err
	}
	if d != "" && got != d {
		_ = os.Remove(part.Name())
		return turnstone.Errorf("registry.fetch", turnstone.KindIntegrity, place(address),
			"is not what the registry says it is: %s, not %s", short(got), short(d)).
			WithHint("try again later, or another registry")
	}
	if err := os.Rename(part.Name(), at); err != nil {
		return storeError(at, err)
	}
	return nil
}

// cached reports whether the file at has the digest d, and marks it as used: see Trim.
func cached(at string, d want) bool {
	if !whole(at, d) {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(at, now, now)
	return true
}

func short(d want) string { return string(d)[:min(len(d), 19)] }

// lock waits for the lock of f.
func lock(ctx context.Context, f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return storeError(f.Name(), err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// whole reports whether the file at path has the digest d. A file without a digest is not kept.
func whole(path string, d want) bool {
	if d == "" {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	h := d.hash()
	_, err = io.Copy(h, f)
	return err == nil && d.of(h) == d
}

// download writes the content of address to part, continues an earlier attempt, and returns the
// digest in d's form.
func (s *Server) download(ctx context.Context, address string, part *os.File,
	d want) (want, error) {
	var err error
	for try := range max(1, s.opts.Retries+1) {
		if try > 0 {
			fmt.Fprintf(s.opts.Log, "registry: %s: %v; trying again\n", place(address),
				withoutAddress(err))
			select {
			case <-ctx.Done():
				return "", ctx.Err()
			case <-time.After(s.opts.Backoff << (try - 1)):
			}
		}
		if err = s.try(ctx, address, part, d != ""); err == nil {
			if _, err = part.Seek(0, io.SeekStart); err != nil {
				return "", storeError(part.Name(), err)
			}
			h := d.hash()
			if _, err = io.Copy(h, part); err != nil {
				return "", storeError(part.Name(), err)
			}
			return d.of(h), nil
		}
		if !again(err) {
			break
		}
	}
	return "", s.explain(address, err)
}

// again reports whether a failed request may succeed on a retry.
func again(err error) bool {
	var status *errStatus
	var typed *turnstone.Error
	switch {
	case errors.As(err, &typed):
		return false
	case errors.As(err, &status):
		return status.code >= 500 || status.code == http.StatusTooManyRequests ||
			status.code == http.StatusRequestTimeout
	}
	return true
}

// explain turns err, of address, into an error with a hint.
func (s *Server) explain(address string, err error) error {
	var status *errStatus
	var typed *turnstone.Error
	out := turnstone.NewError("registry.fetch", turnstone.KindUnavailable, place(address),
		withoutAddress(err)).
		WithHint("check the network; behind a proxy set https_proxy; PIP_INDEX_URL, " +
			"npm_config_registry and TURN_DEBIAN_MIRROR name other registries")
	switch {
	case errors.As(err, &typed):
		return err
	case errors.As(err, &status) &&
		(status.code == http.StatusNotFound || status.code == http.StatusGone):
		out.Kind, out.Hint = turnstone.KindNotFound, ""
	case errors.As(err, &status):
		out.Hint = "try again later, or name another registry with PIP_INDEX_URL, " +
			"npm_config_registry or TURN_DEBIAN_MIRROR: the registry failed, or requires a password"
	case errors.Is(err, errIdle):
		out.Kind = turnstone.KindTimeout
	}
	return out
}

var errIdle = errors.New("no more data arrived")

// try fetches once. With resume, it requests only the bytes that part lacks.
func (s *Server) try(ctx context.Context, address string, part *os.File, resume bool) error {
	have, err := part.Seek(0, io.SeekEnd)
	if err != nil {
		return storeError(part.Name(), err)
	}
	header := http.Header{}
	if resume && have > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	return s.get(ctx, address, header,
		func(ctx context.Context, res *http.Response, p *progressReader) error {
			return s.write(ctx, address, part, have, res, p)
		})
}

// get makes a request in one of the slots, and calls use with the response and the reader of its
// body. It ends when no data arrives for too long.
func (s *Server) get(ctx context.Context, address string, header http.Header,
	use func(ctx context.Context, res *http.Response, body *progressReader) error) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(s.opts.Idle, func() { cancel(errIdle) })
	defer idle.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return withoutAddress(err)
	}
	req.Header = header
	res, err := s.client.Do(req)
	if err != nil {
		return cause(ctx, err)
	}
	defer res.Body.Close()
	return use(ctx, res, &progressReader{s: s, r: res.Body, name: path.Base(req.URL.Path), size: -1,
		alive: func() { idle.Reset(s.opts.Idle) }})
}

// write writes a response to part, which has bytes up to have.
func (s *Server) write(ctx context.Context, address string, part *os.File, have int64,
	res *http.Response, p *progressReader) error {
	switch {
	case res.StatusCode == http.StatusPartialContent &&
		strings.HasPrefix(res.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", have)):
	case res.StatusCode == http.StatusRequestedRangeNotSatisfiable,
		res.StatusCode == http.StatusPartialContent:
		if err := part.Truncate(0); err != nil {
			return storeError(part.Name(), err)
		}
		return errors.New("the server does not continue at the requested offset")
	case res.StatusCode == http.StatusOK:
		have = 0
		if err := part.Truncate(0); err != nil {
			return storeError(part.Name(), err)
		}
	default:
		return &errStatus{res.StatusCode, res.Status}
	}
	if _, err := part.Seek(have, io.SeekStart); err != nil {
		return storeError(part.Name(), err)
	}
	size := int64(-1)
	if res.ContentLength >= 0 {
		size = have + res.ContentLength
	}
	p.done, p.size = have, size
	n, err := io.Copy(part, io.LimitReader(p, min(maxFile+1-have, s.opts.Most+1-s.taken.Load())))
	switch {
	case s.taken.Add(n) > s.opts.Most:
		return turnstone.Errorf("registry.fetch", turnstone.KindExhausted, place(address),
			"the build has fetched more than %d bytes", s.opts.Most).
			WithHint("split it into two templates, one based on the other")
	case turnstone.IsFull(err):
		return storeError(part.Name(), err)
	case err != nil:
		return cause(ctx, err)
	case have+n > maxFile:
		return turnstone.Errorf("registry.fetch", turnstone.KindExhausted, place(address),
			"has more than %d bytes", int64(maxFile))
	case size >= 0 && have+n != size:
		return io.ErrUnexpectedEOF
	}
	fmt.Fprintf(s.opts.Log, "registry: fetched %s: %d bytes\n", place(address), have+n)
	return nil
}

// cause prefers the cause of ctx's end to err.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// text fetches an index, which is small and may change.
func (s *Server) text(ctx context.Context, address,
	accept string) (body []byte, kind string, err error) {
	for try := range max(1, s.opts.Retries+1) {
		if try > 0 {
			select {
			case <-ctx.Done():
				return nil, "", ctx.Err()
			case <-time.After(s.opts.Backoff << (try - 1)):
			}
		}
		if body, kind, err = s.tryText(ctx, address, accept); err == nil || !again(err) {
			break
		}
	}
	if err != nil {
		return nil, "", s.explain(address, err)
	}
	return body, kind, nil
}

func (s *Server) tryText(ctx context.Context, address, accept string) (b []byte, kind string,
	err error) {
	err = s.get(ctx, address, http.Header{"Accept": {accept}},
		func(ctx context.Context, res *http.Response, p *progressReader) error {
			if res.StatusCode != http.StatusOK {
				return &errStatus{res.StatusCode, res.Status}
			}
			kind = res.Header.Get("Content-Type")
			if b, err = io.ReadAll(io.LimitReader(p, maxIndex+1)); err != nil {
				return cause(ctx, err)
			}
			if len(b) > maxIndex {
				return turnstone.Errorf("registry.fetch", turnstone.KindExhausted, place(address),
					"has more than %d bytes", maxIndex)
			}
			return nil
		})
	return b, kind, err
}

// place returns an address without its password and query.
func place(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

func storeError(path string, err error) error {
	return turnstone.Classify("registry.cache", turnstone.KindUnavailable, path, err,
		"free some space on the disk that contains "+filepath.Dir(path))
}

// A progressReader reports the progress of a fetch.
type progressReader struct {
	s          *Server
	r          io.Reader
	name       string
	done, size int64
	alive      func()
	told       time.Time
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.done += int64(n)
	if n > 0 {
		p.alive()
	}
	rate := p.s.rate.add(n)
	if now := time.Now(); p.s.opts.Fetched != nil &&
		(now.Sub(p.told) > 200*time.Millisecond || err != nil) {
		p.told = now
		p.s.opts.Fetched(Fetch{Name: p.name, Done: p.done, Size: p.size, Rate: rate})
	}
	return n, err
}

// A meter measures bytes per second, over the last seconds.
type meter struct {
	mu    sync.Mutex
	since time.Time
	bytes int64
	rate  int64
}

func (m *meter) add(n int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.since.IsZero() || now.Sub(m.since) > 10*time.Second {
		m.since, m.bytes = now, 0
	}
	m.bytes += int64(n)
	if d := now.Sub(m.since); d > time.Second {
		m.rate = int64(float64(m.bytes) / d.Seconds())
		if d > 3*time.Second {
			m.since, m.bytes = now, 0
		}
	}
	return m.rate
}

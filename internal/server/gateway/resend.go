package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// A resender sends a request to the controller again if no byte of its body was read. net/http's
// HTTP/2 selects another connection by itself when the first turns out to be unusable, but has
// closed the body by then, and fails with http.ErrBodyReadAfterClose.
type resender struct{ http.RoundTripper }

// resends bounds how many unusable connections a request may meet.
const resends = 3

// RoundTrip implements http.RoundTripper.
func (t resender) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return t.RoundTripper.RoundTrip(r)
	}
	for n := 0; ; n++ {
		b := &untouched{body: r.Body}
		one := r.WithContext(r.Context())
		one.Body = b
		answer, err := t.RoundTripper.RoundTrip(one)
		if err == nil || n == resends || !errors.Is(err, http.ErrBodyReadAfterClose) || !b.lost() {
			return answer, err
		}
	}
}

// An untouched body can be closed before its first read without effect on the caller's, which its
// server closes in any case.
type untouched struct {
	body io.ReadCloser

	mu     sync.Mutex
	read   bool
	closed bool
}

func (u *untouched) Read(p []byte) (int, error) {
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	u.read = true
	u.mu.Unlock()
	return u.body.Read(p)
}

func (u *untouched) Close() error {
	u.mu.Lock()
	u.closed = true
	read := u.read
	u.mu.Unlock()
	if !read {
		return nil
	}
	return u.body.Close()
}

// lost reports a body that was closed before anything was read.
func (u *untouched) lost() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closed && !u.read
}

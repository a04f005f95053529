package pace_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone/internal/store/blob/s3/pace"
)

// A tripper is a server without a network.
type tripper func(r *http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, header ...string) *http.Response {
	res := &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{},
		Body: http.NoBody}
	for i := 0; i+1 < len(header); i += 2 {
		res.Header.Set(header[i], header[i+1])
	}
	return res
}

// ask sends a request, and reports its status; 0: it failed.
func ask(t *pace.Transport, ctx context.Context) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://bucket/", nil)
	if err != nil {
		return 0, err
	}
	res, err := t.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// TestNoStorm: while a server throttles, many workers send it few requests at a time, and all are
// served when it no longer does.
func TestNoStorm(t *testing.T) {
	var asked, running, most atomic.Int32
	const busy = 12 // answers
	p := pace.New(tripper(func(*http.Request) (*http.Response, error) {
		n := asked.Add(1)
		now := running.Add(1)
		defer running.Add(-1)
		if n > busy {
			return answer(http.StatusOK), nil
		}
		if n > busy/2 { // the first ones began before anybody knew
			for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
			}
		}
		return answer(http.StatusServiceUnavailable), nil
	}), pace.Options{Pause: 20 * time.Millisecond, Most: 4})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for {
				status, err := ask(p, t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if status == http.StatusOK {
					return
				}
			}
		})
	}
	wg.Wait()
	if n := asked.Load(); n != busy+50 {
		t.Errorf("%d requests, want %d", n, busy+50)
	}
	if n := most.Load(); n > 2 {
		t.Errorf("%d requests at one time to a server that throttles", n)
	}
}

// TestRetryAfter: requests wait as long as the server says, and no longer than their context.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		throttled := true
		p := pace.New(tripper(func(*http.Request) (*http.Response, error) {
			if throttled {
				throttled = false
				return answer(http.StatusTooManyRequests, "Retry-After", "1"), nil
			}
			return answer(http.StatusOK), nil
		}), pace.Options{Pause: time.Millisecond})
		if status, err := ask(p, t.Context()); status != http.StatusTooManyRequests {
			t.Fatal(status, err)
		}
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		if _, err := ask(p, ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled request: %v", err)
		}
		if status, err := ask(p, t.Context()); status != http.StatusOK {
			t.Error(status, err)
		}
		if waited := time.Since(began); waited < 900*time.Millisecond {
			t.Errorf("the server asked for a second, and got %s", waited)
		}
	})
}

// TestPatience: operations share the time for which requests are repeated; a success begins it anew.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, away := errors.New("gone"), true
		p := pace.New(tripper(func(*http.Request) (*http.Response, error) {
			if away {
				return nil, gone
			}
			return answer(http.StatusOK), nil
		}), pace.Options{Patience: 50 * time.Millisecond})
		operation := func() (requests int, err error) {
			ctx, end := pace.Begin(t.Context())
			defer end()
			for ctx.Err() == nil {
				if status, err := ask(p, ctx); status == http.StatusOK || !errors.Is(err, gone) {
					return requests, err
				}
				requests++
				time.Sleep(time.Millisecond)
			}
			return requests, pace.Away(ctx)
		}
		for i := range 3 {
			n, err := operation()
			if e := (*pace.AwayError)(nil); !errors.As(err, &e) || !errors.Is(err, gone) {
				t.Fatalf("operation %d: %v", i, err)
			}
			if i > 0 && n != 1 {
				t.Errorf("operation %d sent %d requests after the patience was over", i, n)
			}
		}
		away = false
		if _, err := operation(); err != nil {
			t.Error(err)
		}
		away = true
		if n, err := operation(); n < 2 || err == nil {
			t.Errorf("after a success: %d requests, %v", n, err)
		}
	})
}

// blocked is a body that has no byte until its request ends.
type blocked struct{ ctx context.Context }

// Read implements io.Reader.
func (b blocked) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, context.Cause(b.ctx)
}

// Close implements io.Closer.
func (blocked) Close() error { return nil }

// TestStall: a server that is silent ends its request, before its answer and in it; a slow reader
// does not.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stall = 20 * time.Millisecond
		silent := pace.New(tripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}), pace.Options{Stall: stall})
		if _, err := ask(silent, t.Context()); !errors.Is(err, pace.ErrStalled) {
			t.Errorf("no answer: %v", err)
		}
		half := pace.New(tripper(func(r *http.Request) (*http.Response, error) {
			res := answer(http.StatusOK)
			res.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(strings.NewReader("half"), blocked{r.Context()}), blocked{}}
			return res, nil
		}), pace.Options{Stall: stall})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://bucket/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := half.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		time.Sleep(3 * stall) // the reader's own time
		b := make([]byte, 4)
		if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != "half" {
			t.Errorf("%q %v", b, err)
		}
		if _, err := res.Body.Read(b); !errors.Is(err, pace.ErrStalled) {
			t.Errorf("a silent body: %v", err)
		}
	})
}

// Package pace has the HTTP connection to the server of a bucket: how many requests it gets at one
// time, when they wait because it throttles, and when they end because it is silent or away.
package pace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Options are the bounds of a Transport. Zero values are the defaults.
type Options struct {
	// Stall is how long neither side of a request may send a byte; 1 minute. It has to be enough for
	// what the kernel has taken and not yet sent on a slow line.
	Stall time.Duration
	// Patience is how long requests are repeated while no request succeeds; 30 s. It begins with the
	// first failure, so all requests of a turn share it.
	Patience time.Duration
	// Pause is the longest wait after an answer that throttles and has no Retry-After; 2 s.
	Pause time.Duration
	// Most is the number of requests at one time while nothing throttles; 32.
	Most int
}

const (
	firstPause = 100 * time.Millisecond
	// longestPause bounds a server's Retry-After.
	longestPause = 20 * time.Second
)

// A Transport is an http.RoundTripper for one server. It is safe for concurrent use.
type Transport struct {
	base http.RoundTripper
	o    Options

	mu      sync.Mutex
	running int
	limit   float64       // of running
	changed chan struct{} // closed when running or limit change
	quiet   time.Time     // no request begins before it
	slowed  time.Time     // the last answer that throttled
	pause   time.Duration // the last one; 0: nothing throttles
	down    time.Time     // the first failure since the last success; zero: none
	skew    time.Duration // the server's clock minus this one's
}

// New returns a transport that sends requests through base.
func New(base http.RoundTripper, o Options) *Transport {
	o.Stall = orDefault(o.Stall, time.Minute)
	o.Patience = orDefault(o.Patience, 30*time.Second)
	o.Pause = orDefault(o.Pause, 2*time.Second)
	if o.Most == 0 {
		o.Most = 32
	}
	return &Transport{base: base, o: o, limit: float64(o.Most), changed: make(chan struct{})}
}

func orDefault(d, other time.Duration) time.Duration {
	if d == 0 {
		return other
	}
	return d
}

// An AwayError says that no request to the server has succeeded for as long as requests are repeated.
type AwayError struct {
	For  time.Duration
	Last error // of the last request
}

// Error implements error.
func (e *AwayError) Error() string {
	return fmt.Sprintf("no request has succeeded for %s: %v", e.For.Round(time.Second), e.Last)
}

// Unwrap returns the last request's error.
func (e *AwayError) Unwrap() error { return e.Last }

// ErrStalled is the error of a request that was ended because no byte moved.
var ErrStalled = errors.New("the server is silent")

// giveUpKey is the key of a context's context.CancelCauseFunc.
type giveUpKey struct{}

// Begin returns a context for an operation of one or several requests. The transport ends it with an
// AwayError when the operation must not repeat its requests. The function releases the context.
func Begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	return context.WithValue(ctx, giveUpKey{}, cancel), func() { cancel(context.Canceled) }
}

// Away returns the AwayError that ended a context of Begin; nil: it runs, or ended otherwise.
func Away(ctx context.Context) error {
	if away := (*AwayError)(nil); errors.As(context.Cause(ctx), &away) {
		return away
	}
	return nil
}

// Skew returns by how much the server's clock is ahead of this machine's, as its last answer had it.
func (t *Transport) Skew() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skew
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.enter(r.Context()); err != nil {
		closeBody(r)
		return nil, err
	}
	asked := time.Now()
	w := watch(r.Context(), t.o.Stall)
	out := r.WithContext(w.ctx)
	if r.Body != nil && r.Body != http.NoBody {
		out.Body = &moving{ReadCloser: r.Body, w: w}
	}
	res, err := t.base.RoundTrip(out)
	if err != nil {
		err = w.end(err)
		t.leave(r.Context(), nil, asked, err)
		return nil, err
	}
	w.pause()
	t.leave(r.Context(), res, asked, nil)
	res.Body = &waited{ReadCloser: res.Body, w: w}
	return res, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// enter waits until a request may begin.
func (t *Transport) enter(ctx context.Context) error {
	for {
		t.mu.Lock()
		wait := time.Until(t.quiet)
		changed := t.changed
		if wait <= 0 && t.running < max(1, int(t.limit)) {
			t.running++
			t.mu.Unlock()
			return nil
		}
		t.mu.Unlock()
		var quiet <-chan time.Time
		if wait > 0 {
			// spread, so that those that wait do not begin at one moment
			quiet = time.After(wait + rand.N(wait/2+time.Millisecond))
			changed = nil
		}
		select {
		case <-quiet:
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave notes how a request went.
func (t *Transport) leave(ctx context.Context, res *http.Response, asked time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	close(t.changed)
	t.changed = make(chan struct{})
	if res != nil {
		t.noteClock(res, asked)
		if err = failure(res); err == nil {
			t.down, t.pause = time.Time{}, 0
			t.limit = min(float64(t.o.Most), t.limit+1/t.limit)
			return
		}
	}
	if ctx.Err() != nil { // says nothing about the server
		return
	}
	now := time.Now()
	if t.down.IsZero() {
		t.down = now
	}
	if res != nil && throttles(res) {
		t.throttle(res, asked, now)
	}
	if since := now.Sub(t.down); since >= t.o.Patience {
		if giveUp, ok := ctx.Value(giveUpKey{}).(context.CancelCauseFunc); ok {
			giveUp(&AwayError{since, err})
		}
	}
}

// throttle lets all requests wait, fewer at one time than before. Answers to requests that began
// before the last such answer are the same news.
func (t *Transport) throttle(res *http.Response, asked, now time.Time) {
	if asked.Before(t.slowed) {
		return
	}
	t.slowed = now
	t.limit = max(1, t.limit/2)
	t.pause = min(max(firstPause, 2*t.pause), t.o.Pause)
	wait := t.pause/2 + rand.N(t.pause/2)
	if after, ok := retryAfter(res.Header.Get("Retry-After"), now); ok {
		wait = max(wait, min(after, longestPause))
	}
	// a request that would wait beyond the patience tries once more at its end
	wait = min(wait, max(firstPause, t.o.Patience-now.Sub(t.down)))
	t.quiet = now.Add(wait)
}

// retryAfter parses seconds or a date (RFC 9110, section 10.2.3).
func retryAfter(s string, now time.Time) (time.Duration, bool) {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second, true
	}
	at, err := http.ParseTime(s)
	return max(0, at.Sub(now)), err == nil
}

func throttles(res *http.Response) bool {
	return res.StatusCode == http.StatusServiceUnavailable ||
		res.StatusCode == http.StatusTooManyRequests
}

// failure is the error of an answer that says nothing but that the server cannot answer now.
func failure(res *http.Response) error {
	if throttles(res) || res.StatusCode >= http.StatusInternalServerError &&
		res.StatusCode != http.StatusInsufficientStorage {
		return errors.New(res.Status)
	}
	return nil
}

// noteClock compares the clocks: the server's has seconds.
func (t *Transport) noteClock(res *http.Response, asked time.Time) {
	if at, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		now := time.Now()
		t.skew = at.Sub(asked.Add(now.Sub(asked) / 2)).Round(time.Second)
	}
}

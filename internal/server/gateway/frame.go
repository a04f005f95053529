package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/principal"
)

// headers are in every answer: no answer is a page, and none is for a cache.
var headers = map[string]string{
	"Cache-Control":           "no-store",
	"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
	"Referrer-Policy":         "no-referrer",
	"X-Content-Type-Options":  "nosniff",
}

// frame bounds a request before anything looks at it.
func (g *Gateway) frame(next http.Handler) http.Handler {
	l := g.o.Limits
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for k, v := range headers {
			w.Header().Set(k, v)
		}
		if r.TLS != nil {
			w.Header().Set("Strict-Transport-Security", "max-age=31536000")
		}
		p := &patient{ResponseWriter: w, stall: l.Stall, ctl: http.NewResponseController(w)}
		if r.ProtoMajor == 1 {
			p.done() // the deadline of the connection's last answer
		}
		defer p.last()
		r.Header.Del(principal.CallerHeader)
		if at, ok := callerOf(r, g.o.Proxies); ok {
			r.Header.Set(principal.CallerHeader, addressText(at))
			if err := g.arrived(at); err != nil {
				if from, _ := addressOf(r.RemoteAddr); !within(from, g.o.Proxies) {
					// Connections are limited too: a flood of requests in one would be answered
					// as fast as it comes.
					p.Header().Set("Connection", "close")
				}
				g.refuser.refuse(p, r, err)
				return
			}
		}
		if r.ContentLength > l.Request {
			g.refuser.refuse(p, r, tooLarge(r.ContentLength, l.Request))
			return
		}
		if r.Body != nil && r.Body != http.NoBody {
			_ = p.ctl.SetReadDeadline(time.Now().Add(l.Body)) // net/http resets it at the end
			b := &body{ReadCloser: http.MaxBytesReader(p, r.Body, l.Request), limit: l.Body}
			r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, b))
			r.Body = b
		}
		next.ServeHTTP(p, r)
	})
}

func tooOften(subject string, wait time.Duration) error {
	return &api.Status{RetryAfter: wait, Err: turnstone.Errorf("gateway.rate",
		turnstone.KindExhausted, subject, "sends more requests than its rate allows").
		WithHint("wait as long as the answer says, and repeat the request")}
}

func tooLarge(size, limit int64) error {
	return turnstone.Errorf("gateway.request", turnstone.KindExhausted, "request",
		"has %d bytes; the limit is %d", size, limit).
		WithHint("send contents through the channel; the control API carries none")
}

// A body explains why it cannot be read, and remembers it: a failed read of HTTP/1.1 cancels its
// request before it returns, so whoever passes the request on may notice that first.
type body struct {
	io.ReadCloser
	limit   time.Duration
	reading sync.Mutex // held during a read
	failed  atomic.Pointer[error]
}

type bodyKey struct{}

// bodyError returns why the body of a request could not be read, or nil. It waits for the end of a
// read if the request has ended: that read may be the reason. A read has a deadline.
func bodyError(ctx context.Context) error {
	b, ok := ctx.Value(bodyKey{}).(*body)
	if !ok {
		return nil
	}
	if ctx.Err() != nil {
		b.reading.Lock()
		defer b.reading.Unlock()
	}
	if err := b.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (b *body) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &lateError{b.limit}
	} else if errors.Is(err, io.ErrUnexpectedEOF) {
		err = cutError{}
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.failed.CompareAndSwap(nil, &err)
	}
	return n, err
}

// A cutError is about a body that ended early.
type cutError struct{}

func (cutError) Error() string { return "the request's body is cut off" }
func (cutError) Unwrap() error { return io.ErrUnexpectedEOF }

// A lateError is about a body that did not come in time.
type lateError struct{ limit time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("the request's body did not arrive within %s", e.limit)
}

func (e *lateError) Timeout() bool { return true }

// Is makes it a deadline of the caller, for package connect.
func (e *lateError) Is(target error) bool { return target == context.DeadlineExceeded }

// A patient ResponseWriter waits for a caller that does not read for a limited time only.
type patient struct {
	http.ResponseWriter
	ctl   *http.ResponseController
	stall time.Duration
}

func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patient) Write(b []byte) (int, error) {
	p.begin()
	n, err := p.ResponseWriter.Write(b)
	p.done()
	return n, err
}

// Flush implements http.Flusher, which package connect asks for.
func (p *patient) Flush() {
	p.begin()
	_ = p.ctl.Flush() // a caller that is gone is noticed by its context
	p.done()
}

func (p *patient) begin() { _ = p.ctl.SetWriteDeadline(time.Now().Add(p.stall)) }

// done takes the deadline back: HTTP/2 would end a stream that is silent.
func (p *patient) done() { _ = p.ctl.SetWriteDeadline(time.Time{}) }

// last bounds what net/http writes after the handler. The connection's next request begins with
// deadlines of its own.
func (p *patient) last() { p.begin() }

// Arrive admits a request to another listener of this process, before its token is looked at: within
// the rate of its address. The error is of kind Exhausted, and says how long to wait.
func (g *Gateway) Arrive(r *http.Request) error {
	at, ok := callerOf(r, g.o.Proxies)
	if !ok {
		return nil
	}
	return g.arrived(at)
}

func (g *Gateway) arrived(at netip.Prefix) error {
	if wait := g.addresses.take(at); wait > 0 {
		return tooOften("the address", wait)
	}
	return nil
}

// Begin admits a call of a caller that another listener of this process has authenticated: within the
// rate of its token. The context ends when the token ends; the function ends the call.
func (g *Gateway) Begin(ctx context.Context, p auth.Principal) (context.Context, func(), error) {
	if p.Issuer != "" {
		if wait := g.tokens.take(keyOf(p)); wait > 0 {
			return nil, nil, tooOften("the token", wait)
		}
	}
	return g.calls.begin(ctx, p, false)
}

// guarded passes requests with a valid token on, and the operator's.
func (g *Gateway) guarded(resumable func(*http.Request) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := g.principal(r)
		if err != nil {
			if g.o.Refused != nil {
				g.o.Refused(r, err)
			}
			g.refuser.refuse(w, r, err)
			return
		}
		if p.Issuer != "" {
			if wait := g.tokens.take(keyOf(p)); wait > 0 {
				g.refuser.refuse(w, r, tooOften("the token", wait))
				return
			}
		}
		ctx, done, err := g.calls.begin(auth.NewContext(r.Context(), p), p, resumable(r))
		if err != nil {
			g.refuser.refuse(w, r, err)
			return
		}
		defer done()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

package remote

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
)

// Bounds of an answer to a control call, which comes from a server that is not trusted.
const (
	answerTime = 10 * time.Minute // to its head: a controller makes a machine for up to 5 minutes
	bodyTime   = time.Minute      // from its head to its end
	// bodyRoom is for the framing and the error of an answer beside its message.
	bodyRoom = 1 << 20
)

// answers bounds the answers of unary calls in bytes and in time, also those of other servers and of
// errors, which the library reads without a bound. A stream has neither bound: it is as long as its
// caller wants, and the library bounds its messages.
type answers struct {
	next       http.RoundTripper
	head, body time.Duration
}

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+") {
		return a.next.RoundTrip(r)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	late := time.AfterFunc(a.head, func() { cancel(slow(a.head)) })
	answer, err := a.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		late.Stop()
		if why := context.Cause(ctx); why != nil && r.Context().Err() == nil {
			err = why
		}
		cancel(nil)
		return nil, err
	}
	late.Stop()
	late = time.AfterFunc(a.body, func() { cancel(slow(a.body)) })
	answer.Body = &boundedBody{ReadCloser: answer.Body, ctx: ctx, left: api.MaxAnswer + bodyRoom,
		done: func() { late.Stop(); cancel(nil) }}
	return answer, nil
}

func slow(t time.Duration) error {
	return turnstone.Errorf("host.call", turnstone.KindTimeout, "the answer",
		"is not complete after %s", t).WithHint("check that the server runs and can be reached")
}

// A boundedBody is the body of an answer. Its bytes count as they arrive, before decompression,
// which has a bound of its own.
type boundedBody struct {
	io.ReadCloser
	ctx  context.Context
	left int64
	done func()
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, turnstone.Errorf("host.call", turnstone.KindIntegrity, "the answer",
			"has more than %d bytes", api.MaxAnswer+bodyRoom).
			WithHint("check the server's address")
	}
	if err != nil && err != io.EOF { //nolint:errorlint // readers return it as it is
		if why := context.Cause(b.ctx); why != nil {
			err = why
		}
	}
	return n, err
}

// Close implements io.Closer.
func (b *boundedBody) Close() error {
	err := b.ReadCloser.Close()
	b.done()
	return err
}

package gateway

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/duplex"
)

// Controller returns the handler of control calls for a controller in another process, at a base
// URL. It passes on the request with its Authorization, which the controller verifies itself, and
// the answer as it comes. The transport speaks HTTP/2, which gRPC needs. log gets why the
// controller did not answer; nil: nobody does.
func Controller(base *url.URL, transport http.RoundTripper, l *slog.Logger) http.Handler {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	f := newRefuser("")
	explain := func(ctx context.Context) func(error) error {
		return func(err error) error { return controllerError(ctx, err, l) }
	}
	return duplex.Handler(&httputil.ReverseProxy{
		Transport: bodyKeeper{transport},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			// ReverseProxy has removed the other fields of the caller's connection.
			r.Out.Header.Del("Connection")
			r.Out.Header.Del("Upgrade")
			r.Out.Header.Del("Cookie")
		},
		FlushInterval: -1,
		BufferPool:    &proxyBuffers{},
		ModifyResponse: func(r *http.Response) error {
			for k := range headers {
				r.Header.Del(k)
			}
			if r.StatusCode == http.StatusSwitchingProtocols {
				return turnstone.Errorf("gateway.controller", turnstone.KindIntegrity,
					"the controller", "switches the protocol, and nobody asked for it")
			}
			if form := formOf(r.Header); form != noForm {
				r.Body = &answer{ReadCloser: r.Body, response: r, form: form, writer: f.writer,
					explain: explain(r.Request.Context())}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			f.refuse(w, r, explain(r.Context())(err))
		},
		ErrorLog: log.New(serverLog{l}, "", 0),
	})
}

// controllerError returns what a caller is told of a call that did not reach the controller.
func controllerError(ctx context.Context, err error, l *slog.Logger) error {
	var large *http.MaxBytesError
	var status *api.Status
	var late *lateError
	cause := context.Cause(ctx)
	if errors.As(cause, &status) {
		return cause
	}
	failed := bodyError(ctx)
	switch {
	case errors.As(failed, &large):
		return turnstone.Errorf("gateway.request", turnstone.KindExhausted, "request",
			"has more than %d bytes", large.Limit)
	case errors.As(failed, &late):
		return turnstone.NewError("gateway.request", turnstone.KindTimeout, "request", late)
	case failed != nil:
		return turnstone.NewError("gateway.request", turnstone.KindInvalid, "request", failed)
	case cause != nil:
		return turnstone.NewError("gateway.controller", turnstone.KindCanceled, "the call", cause)
	}
	l.WarnContext(ctx, "the controller cannot be reached", "error", err)
	return &api.Status{RetryAfter: time.Second, Err: turnstone.Errorf("gateway.controller",
		turnstone.KindUnavailable, "the controller", "does not answer").
		WithHint("try again soon; the gateway's log says why it does not")}
}

// proxyBuffers implements httputil.BufferPool.
type proxyBuffers struct{ pool sync.Pool }

func (p *proxyBuffers) Get() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *proxyBuffers) Put(b []byte) { p.pool.Put(&b) }

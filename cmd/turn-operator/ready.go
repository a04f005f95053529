package main

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// A readiness checks the server, and logs why it cannot be used when that changes: /readyz says it.
type readiness struct {
	check func(context.Context) error
	log   *slog.Logger

	mu   sync.Mutex
	last string
}

func (r *readiness) ready(ctx context.Context) error {
	err := r.check(ctx)
	if ctx.Err() != nil {
		return err // the caller has left: that says nothing about the server
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	r.mu.Lock()
	changed := text != r.last
	r.last = text
	r.mu.Unlock()
	switch {
	case changed && err != nil:
		r.log.Warn("not ready: the server cannot be used", "error", text, "hint", turnstone.HintOf(err))
	case changed:
		r.log.Info("ready: the server can be used again")
	}
	return err
}

// readyTime bounds a check: a kubelet waits for a second by default, and the chart says ten.
const readyTime = 8 * time.Second

// handler serves /healthz, which says that the process answers, and /readyz, which says why the operator
// cannot serve. Both are there whether the API server is or not.
func (r *readiness) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, q *http.Request) {
		ctx, cancel := context.WithTimeoutCause(q.Context(), readyTime, errSlow)
		defer cancel()
		err := r.ready(ctx)
		if err == nil {
			_, _ = io.WriteString(w, "ready\n")
			return
		}
		if errors.Is(context.Cause(ctx), errSlow) {
			err = errSlow
		}
		text := "not ready: " + err.Error() + "\n"
		if hint := turnstone.HintOf(err); hint != "" {
			text += "hint: " + hint + "\n"
		}
		http.Error(w, text, http.StatusServiceUnavailable)
	})
	return mux
}

var errSlow = errors.New("the server does not answer")

// serve serves the two pages at an address until ctx ends; "0": nowhere.
func (r *readiness) serve(ctx context.Context, address string) error {
	if address == "0" {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: r.handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	context.AfterFunc(ctx, func() { _ = s.Close() })
	go func() { _ = s.Serve(l) }()
	r.log.Info("serving health", "address", l.Addr().String())
	return nil
}

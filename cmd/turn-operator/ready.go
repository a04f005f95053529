package main

import (
	"context"
	"log/slog"
	"sync"

	"turnstone.dev/turnstone"
)

// A readiness checks the server, and logs why it cannot be used when that changes: /readyz withholds it.
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

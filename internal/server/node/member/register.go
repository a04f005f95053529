package member

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// registerEvery is the time between two registrations; a controller counts a node as lost
	// after several of them.
	registerEvery = 5 * time.Second
	// retryEvery is the same while the controller does not answer.
	retryEvery = registerEvery / 10
	// tellTime bounds the wait of a node that ends for its controller, which may have gone.
	tellTime = 2 * time.Second
	// warnAfter is the number of failures at the start before a warning.
	warnAfter = 10
)

// A registration tells the controller again and again that the node is there, and that it ends.
type registration struct {
	call func(ctx context.Context) error // with what the node is at that moment
	log  *slog.Logger
	name []any // what the log has about the node

	answered atomic.Bool   // the last call
	ends     chan struct{} // closed when the node begins to end
	told     chan struct{} // closed when a call was answered that began after that
}

func newRegistration(call func(ctx context.Context) error, log *slog.Logger, name ...any) *registration {
	return &registration{call: call, log: log, name: name, ends: make(chan struct{}), told: make(chan struct{})}
}

// run calls until ctx ends.
func (r *registration) run(ctx context.Context) {
	was, failures, ends, said := errors.New("not yet"), 0, r.ends, false
	for {
		limited, cancel := context.WithTimeout(ctx, registerEvery)
		err := r.call(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		r.answered.Store(err == nil)
		wait := registerEvery
		switch {
		case err != nil:
			if was == nil || failures == warnAfter { // roles that start together meet late
				r.log.Warn("the node cannot register; trying again", "error", err,
					"hint", "check peers.controller, and that the certificate names the role node")
			} else {
				r.log.Debug("the node cannot register", "error", err)
			}
			failures++
			wait = retryEvery
		case was != nil:
			r.log.Info("node registered", r.name...)
		}
		if err == nil && ends == nil && !said {
			said = true
			close(r.told)
		}
		was = err
		select {
		case <-ctx.Done():
			return
		case <-ends:
			ends = nil
		case <-time.After(wait):
		}
	}
}

// end calls at once, and waits until the controller has answered, unless it did not answer the last call. It is called
// once, after the node's description has the end.
func (r *registration) end(ctx context.Context) {
	close(r.ends)
	if !r.answered.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellTime)
	defer cancel()
	select {
	case <-r.told:
	case <-ctx.Done():
	}
}

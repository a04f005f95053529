package router

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
)

// How long a request waits for a server that does not take a call now. What is asked again has no effect:
// the list of sandboxes, and a channel in which nothing was said.
const (
	rateWait   = 30 * time.Second // while the rate of the token is used up
	awayWait   = 10 * time.Second // while the server is away
	leastPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
)

// patiently makes a call again while the server does not take it, within the bounds.
func (h *handler) patiently(ctx context.Context, call func() error) error {
	began := time.Now()
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		err := call()
		bound := h.wait(err)
		wait := min(max(pause, api.RetryAfter(err)), mostPause)
		wait += rand.N(wait / 4) // those that wait do not ask at one time
		if err == nil || time.Since(began)+wait > bound {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// wait returns how long to ask again after an error; 0: not at all.
func (h *handler) wait(err error) time.Duration {
	switch {
	case err == nil:
		return 0
	case tooOften(err):
		return h.rateWait
	case turnstone.KindOf(err) == turnstone.KindUnavailable:
		return h.awayWait
	}
	return 0
}

// tooOften reports the error of a caller who asks more often than its rate allows. That of a WebSocket is of
// the kind Unavailable, and the only one that says when to ask again.
func tooOften(err error) bool {
	var e *turnstone.Error
	return api.RetryAfter(err) > 0 && errors.As(err, &e) &&
		(e.Kind == turnstone.KindExhausted || e.Op == "websocket.dial")
}

// failed answers a request that the server did not take.
func failed(w http.ResponseWriter, err error, why string) {
	status := http.StatusBadGateway
	switch {
	case tooOften(err):
		status, why = http.StatusTooManyRequests, "the namespace has more requests than its rate at the server allows"
	case turnstone.KindOf(err) == turnstone.KindUnavailable:
		status = http.StatusServiceUnavailable
	}
	if status != http.StatusBadGateway {
		after := max(1, math.Ceil(api.RetryAfter(err).Seconds()))
		w.Header().Set("Retry-After", strconv.Itoa(int(after)))
	}
	refuse(w, status, why)
}

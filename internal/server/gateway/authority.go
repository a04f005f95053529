package gateway

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// A Watcher is the controller as a gateway watches it; a client of ControllerService is one.
type Watcher interface {
	WatchAuthority(context.Context, *connect.Request[v1.WatchAuthorityRequest]) (
		*connect.ServerStreamForClient[v1.WatchAuthorityResponse], error)
}

// Waits between two connections to the controller.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Follow keeps f, such as an auth.TokenVerifier, informed about keys and revocations until ctx
// ends. It connects again whenever the controller is gone, says nothing for the time silence, or
// says what cannot be true; f itself refuses tokens when its last bulletin is too old. log gets why
// the controller could not be followed; nil: nobody does.
func Follow(ctx context.Context, w Watcher, f auth.Follower, silence time.Duration,
	log *slog.Logger) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	followAll(ctx, retriesWithin(silence), log, func(heard func()) error {
		return follow(ctx, w, f, silence, heard)
	})
}

// retries are the first and the longest wait between two attempts.
type retries struct{ first, last time.Duration }

// retriesWithin returns the waits of a gateway that gives up a silent controller after a time: all
// tokens are refused after twice that, so it must not wait for longer before it tries again.
func retriesWithin(silence time.Duration) retries {
	return retries{firstRetry, max(firstRetry, min(lastRetry, silence/4))}
}

// followAll calls once again and again until ctx ends.
func followAll(ctx context.Context, r retries, log *slog.Logger, once func(heard func()) error) {
	wait, failed := r.first, false
	for {
		err := once(func() {
			if failed {
				log.Info("the controller answers again")
			}
			wait, failed = r.first, false
		})
		if ctx.Err() != nil {
			return
		}
		if !failed {
			failed = true
			log.Warn("the controller's list of keys and revocations ended; trying again",
				"kind", turnstone.KindOf(err), "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait/2 + rand.N(wait/2+1)): // gateways come back one after the other
		}
		wait = min(2*wait, r.last)
	}
}

// follow watches the controller once. heard is called after each message that f takes.
func follow(ctx context.Context, w Watcher, f auth.Follower, silence time.Duration,
	heard func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := turnstone.Errorf("gateway.follow", turnstone.KindTimeout, "the controller",
		"says nothing for %s", silence)
	t := time.AfterFunc(silence, func() { cancel(silent) })
	defer t.Stop()
	stream, err := w.WatchAuthority(ctx, connect.NewRequest(&v1.WatchAuthorityRequest{}))
	if err == nil {
		defer func() { _ = stream.Close() }()
		b := bulletin{follower: f}
		for err == nil && stream.Receive() {
			t.Reset(silence)
			var done bool
			if done, err = b.take(stream.Msg()); done && err == nil {
				heard()
			}
		}
		if err == nil {
			err = stream.Err()
		}
	}
	if context.Cause(ctx) != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		return turnstone.Errorf("gateway.follow", turnstone.KindUnavailable, "the controller",
			"ended the stream")
	}
	return api.FromConnect(err)
}

// A bulletin is put together from its parts.
type bulletin struct {
	follower auth.Follower
	number   uint64
	text     []byte // of an unfinished bulletin
}

// take takes a message, and reports whether the follower has got something.
func (b *bulletin) take(m *v1.WatchAuthorityResponse) (bool, error) {
	bad := func(format string, args ...any) (bool, error) {
		return false, turnstone.Errorf("gateway.follow", turnstone.KindIntegrity, "the controller",
			format, args...)
	}
	if len(m.Part) == 0 && !m.Last {
		if len(b.text) > 0 {
			return bad("confirms bulletin %d within bulletin %d", m.Number, b.number)
		}
		return true, b.follower.Confirm(m.Number)
	}
	if len(b.text) > 0 && m.Number != b.number {
		return bad("sends a part of bulletin %d within bulletin %d", m.Number, b.number)
	}
	b.number = m.Number
	if len(b.text)+len(m.Part) > auth.MaxBulletin {
		return bad("sends a bulletin of more than %d bytes", auth.MaxBulletin)
	}
	b.text = append(b.text, m.Part...)
	if !m.Last {
		return false, nil
	}
	whole, err := auth.DecodeBulletin(b.text)
	b.text = nil
	if err != nil {
		return false, err
	}
	if whole.Number != m.Number {
		return bad("sends bulletin %d as %d", whole.Number, m.Number)
	}
	return true, b.follower.Update(whole)
}

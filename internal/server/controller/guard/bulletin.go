package guard

import (
	"context"
	"sync"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
)

// WatchAuthority sends a gateway the newest bulletin of a publisher, each later one, and their
// confirmations, until ctx ends or the controller has ended.
func WatchAuthority(ctx context.Context, ended <-chan struct{}, from *auth.Publisher,
	send func(*v1.WatchAuthorityResponse) error) error {
	f := &follower{wake: make(chan struct{}, 1)}
	leave, err := from.Follow(f)
	if err != nil {
		return err
	}
	defer leave()
	var sent uint64
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return turnstone.Errorf("authority.watch", turnstone.KindUnavailable, "the controller",
				"ends").WithHint("watch again")
		case <-f.wake:
		}
		b := f.newest()
		if b.Number == sent {
			if err := send(&v1.WatchAuthorityResponse{Number: sent}); err != nil {
				return err
			}
			continue
		}
		if err := parts(b, send); err != nil {
			return err
		}
		sent = b.Number
	}
}

// partSize is the size of a part of a bulletin.
const partSize = 1 << 20

func parts(b auth.Bulletin, send func(*v1.WatchAuthorityResponse) error) error {
	text, err := b.Encode()
	if err != nil {
		return err
	}
	for len(text) > 0 {
		n := min(len(text), partSize)
		err := send(&v1.WatchAuthorityResponse{Number: b.Number, Part: text[:n],
			Last: n == len(text)})
		if err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// A follower queues the newest bulletin for a gateway.
type follower struct {
	wake chan struct{} // has one element when there is a bulletin or a confirmation

	mu   sync.Mutex
	last auth.Bulletin
}

// Update implements auth.Follower.
func (f *follower) Update(b auth.Bulletin) error {
	f.mu.Lock()
	f.last = b
	f.mu.Unlock()
	f.signal()
	return nil
}

// Confirm implements auth.Follower.
func (f *follower) Confirm(number uint64) error {
	f.mu.Lock()
	have := f.last.Number
	f.mu.Unlock()
	if have != number {
		return turnstone.Errorf("authority.watch", turnstone.KindIntegrity, "bulletin",
			"number %d is confirmed, which did not come", number)
	}
	f.signal()
	return nil
}

func (f *follower) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *follower) newest() auth.Bulletin {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

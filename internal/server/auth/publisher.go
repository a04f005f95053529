package auth

import (
	"context"
	"errors"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// A Register durably stores revocations, such as in the controller's database.
type Register interface {
	// Revoke adds revocations. They are durable when it returns.
	Revoke(ctx context.Context, r ...Revocation) error
	// Revocations returns what is revoked, and may leave out what ended before the given time.
	Revocations(ctx context.Context, after time.Time) ([]Revocation, error)
	// Number returns a number that is greater than all that it returned before, also before a
	// restart.
	Number(ctx context.Context) (uint64, error)
}

// A Follower gets each bulletin, such as a *TokenVerifier or the connection to a gateway. Its
// methods must return soon: a remote follower queues the newest bulletin.
type Follower interface {
	Update(b Bulletin) error
	// Confirm says that the bulletin with this number is still the newest one. It fails if the
	// follower has another one; then Update follows.
	Confirm(number uint64) error
}

// A Publisher tells followers which tokens and keys are valid. The controller has one. It may be
// used concurrently.
type Publisher struct {
	issuer   *Issuer
	register Register

	// order is held while a bulletin is made, and for the whole of a rotation: a bulletin that is
	// made in between would lack the new key.
	order sync.Mutex

	mu        sync.Mutex
	followers map[int]Follower
	next      int
	last      Bulletin
	behind    bool // the register or the keys may have changed since last
}

// NewPublisher returns a publisher of an issuer's keys, with its first bulletin.
func NewPublisher(ctx context.Context, i *Issuer, r Register) (*Publisher, error) {
	p := &Publisher{issuer: i, register: r, followers: map[int]Follower{}}
	_, err := p.publish(ctx, i.Keys)
	return p, err
}

// Follow gives f the last bulletin and then each new one, until the function that it returns is
// called.
func (p *Publisher) Follow(f Follower) (end func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := f.Update(p.last); err != nil {
		return nil, err
	}
	id := p.next
	p.next++
	p.followers[id] = f
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.followers, id)
	}, nil
}

// Beat confirms the last bulletin. The controller calls it more often than the limit of the
// bulletin's age at its followers, which refuse all tokens after that. If the last change could not
// be published, Beat publishes it and confirms nothing before that succeeds.
func (p *Publisher) Beat(ctx context.Context) error {
	p.mu.Lock()
	if !p.behind {
		defer p.mu.Unlock()
		var all []error
		for _, f := range p.followers {
			if f.Confirm(p.last.Number) != nil {
				all = append(all, f.Update(p.last))
			}
		}
		return errors.Join(all...)
	}
	p.mu.Unlock()
	p.order.Lock()
	defer p.order.Unlock()
	told, err := p.publish(ctx, p.issuer.Keys)
	return errors.Join(err, told)
}

// Revoke stores revocations and tells the followers. An error of a follower does not undo them. The
// error is of kind Exhausted if too much is revoked already; then nothing is stored.
func (p *Publisher) Revoke(ctx context.Context, list ...Revocation) error {
	for _, r := range list {
		if err := r.check(); err != nil {
			return err
		}
	}
	p.order.Lock()
	defer p.order.Unlock()
	have, err := p.revoked(ctx)
	if err != nil {
		return err
	}
	if n := len(have) + len(list); n > MaxRevoked {
		return turnstone.Errorf("token.revoke", turnstone.KindExhausted, "the list of revocations",
			"would have %d entries; the limit is %d", n, MaxRevoked).
			WithHint("rotate the key, which ends all its tokens, and revoke the old key")
	}
	p.setBehind(true) // also if the register fails: it may have stored some
	if err := p.register.Revoke(ctx, list...); err != nil {
		return err
	}
	told, err := p.publish(ctx, p.issuer.Keys)
	return errors.Join(err, told)
}

func (p *Publisher) setBehind(b bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.behind = b
}

// revoked returns what is revoked and has not ended long ago.
func (p *Publisher) revoked(ctx context.Context) (list []Revocation, err error) {
	now := p.issuer.clock.Now()
	all, err := p.register.Revocations(ctx, now.Add(-keptAfter))
	for _, r := range all {
		if r.Until.IsZero() || now.Before(r.Until.Add(keptAfter)) {
			list = append(list, r)
		}
	}
	return list, err
}

// Rotate replaces the issuer's key; until is as for Issuer.Rotate. Followers know the new key
// before a token is signed with it. An error of a follower does not undo the rotation: it refuses
// new tokens until it gets a later bulletin or Beat.
func (p *Publisher) Rotate(ctx context.Context, until time.Time) error {
	p.order.Lock()
	defer p.order.Unlock()
	var told error
	err := p.issuer.Rotate(ctx, until, func(keys []OwnKey) (err error) {
		told, err = p.publish(ctx, func() []OwnKey { return keys })
		return err
	})
	if err != nil {
		_, again := p.publish(ctx, p.issuer.Keys)
		return errors.Join(err, again)
	}
	return told
}

// publish makes a bulletin and tells the followers; told has their errors. The caller holds order.
func (p *Publisher) publish(ctx context.Context, keys func() []OwnKey) (told, err error) {
	p.setBehind(true)
	b := Bulletin{Keys: keys()}
	if b.Revoked, err = p.revoked(ctx); err != nil {
		return nil, err
	}
	if b.Number, err = p.register.Number(ctx); err != nil {
		return nil, err
	}
	if err := b.check(); err != nil {
		return nil, turnstone.NewError("auth.bulletin", turnstone.KindExhausted, "bulletin", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.behind = b, false
	return p.push(), nil
}

// push gives the last bulletin to all followers, whatever one of them answers. The caller holds mu.
func (p *Publisher) push() error {
	var all []error
	for _, f := range p.followers {
		all = append(all, f.Update(p.last))
	}
	return errors.Join(all...)
}

package repo

import (
	"context"
	"encoding/base64"
	"errors"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/seal"
	"turnstone.dev/turnstone/internal/store/session"
)

// Keys has the keys of domains. Its methods are safe for concurrent use, and may wait for a service.
type Keys interface {
	// New returns the domain of a new session; empty: new sessions are not sealed.
	New(ctx context.Context) (turnstone.DomainID, error)
	// Open returns a domain with its key. If the key is not at hand, the error is of kind
	// Unavailable.
	Open(ctx context.Context, id turnstone.DomainID) (*seal.Domain, error)
}

// In returns the context store as the domain d sees it: what it stores is sealed, what it reads is
// the domain's or public, and its images are in memory. An empty d is the public part, which cs may
// be. If the domain's key is not at hand, the error is of kind Unavailable.
func (cs *ContextStore) In(ctx context.Context, d turnstone.DomainID) (*ContextStore, error) {
	if d == cs.domain {
		return cs, nil
	}
	public := cs
	if cs.public != nil {
		public = cs.public
	}
	if d == "" {
		return public, nil
	}
	if public.keys == nil {
		return nil, lockedSession(d)
	}
	domain, err := public.keys.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	images, err := public.dir.Memory("images", string(d))
	if err != nil {
		return nil, err
	}
	in := *public
	in.public, in.domain, in.Domain = public, d, domain
	in.Store = public.Store.In(domain)
	in.Images = lowerdir.New(images, in.Store, lowerdir.Options{})
	return &in, nil
}

// NewDomain returns the domain of a new session, and the context store as the domain sees it. The
// caller calls Settle when the session is stored, or will not be.
func (cs *ContextStore) NewDomain(ctx context.Context) (in *ContextStore, d turnstone.DomainID,
	err error) {
	if cs.keys == nil {
		return cs, "", nil
	}
	if d, err = cs.keys.New(ctx); err == nil {
		in, err = cs.In(ctx, d)
	}
	return in, d, err
}

// Needs returns the names of what a turn of this domain has put into the batch or found in the store,
// for the database: nobody else knows what a sealed turn needs. It is empty if cs is not sealed.
func (cs *ContextStore) Needs(b *store.Batch) []turnstone.Digest {
	if !cs.Sealed() {
		return nil
	}
	return b.Needs()
}

// Of returns the domain whose view cs is; empty: it is the public part.
func (cs *ContextStore) Of() turnstone.DomainID { return cs.domain }

// Sealed reports whether cs is the view of a domain.
func (cs *ContextStore) Sealed() bool { return cs.domain != "" }

// Resolve finds the turn that ref names, and returns it with the context store of its session's
// domain.
func (cs *ContextStore) Resolve(ctx context.Context, ref string) (*ContextStore, turnstone.Turn,
	error) {
	t, err := cs.DB.Resolve(ctx, ref)
	if err != nil {
		return nil, t, err
	}
	return cs.of(ctx, t)
}

// ResolveIn is Resolve within a known session: see session.DB.ResolveIn.
func (cs *ContextStore) ResolveIn(ctx context.Context, s turnstone.SessionID, ref string) (
	*ContextStore, turnstone.Turn, error) {
	t, err := cs.DB.ResolveIn(ctx, s, ref)
	if err != nil {
		return nil, t, err
	}
	return cs.of(ctx, t)
}

// Within is ResolveIn for a turn that is read together with those of cs: turns of different domains
// are not.
func (cs *ContextStore) Within(ctx context.Context, s turnstone.SessionID, ref string) (
	turnstone.Turn, error) {
	in, t, err := cs.ResolveIn(ctx, s, ref)
	if err == nil && in.domain != cs.domain {
		err = turnstone.Errorf("executor.resolve", turnstone.KindInvalid, ref,
			"is a turn of a session that is sealed with another key").
			WithHint("compare turns of one session")
	}
	return t, err
}

// of returns the context store of t's domain, and t with what the key opens.
func (cs *ContextStore) of(ctx context.Context, t turnstone.Turn) (*ContextStore, turnstone.Turn,
	error) {
	in, err := cs.In(ctx, t.Domain)
	if err == nil && t.Locked { // the key has come since
		t, err = in.DB.Turn(ctx, t.ID)
	}
	return in, t, err
}

func lockedSession(d turnstone.DomainID) error {
	return turnstone.NewError("executor.unlock", turnstone.KindUnavailable, "domain "+string(d),
		turnstone.ErrLocked).WithHint("give the state directory its key: see docs/keys.md")
}

// A sealer seals rows of the database with the keys of domains.
type sealer struct{ keys Keys }

var _ session.Sealer = sealer{}

// NewDomain implements session.Sealer.
func (s sealer) NewDomain(ctx context.Context) (turnstone.DomainID, error) { return s.keys.New(ctx) }

// Settle implements session.Sealer.
func (s sealer) Settle(d turnstone.DomainID) { settle(s.keys, d) }

// SealText implements session.Sealer.
func (s sealer) SealText(ctx context.Context, d turnstone.DomainID, place, text string) (string,
	error) {
	domain, err := s.keys.Open(ctx, d)
	if err != nil {
		return "", err
	}
	sealed, err := domain.SealBytes(place, []byte(text))
	return base64.RawURLEncoding.EncodeToString(sealed), err
}

// OpenText implements session.Sealer.
func (s sealer) OpenText(ctx context.Context, d turnstone.DomainID, place, sealed string) (string,
	error) {
	domain, err := s.keys.Open(ctx, d)
	if err != nil {
		return "", err
	}
	b, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil {
		return "", turnstone.Errorf("executor.unlock", turnstone.KindIntegrity, place,
			"is no sealed text: %w", err)
	}
	text, err := domain.OpenBytes(place, b)
	return string(text), err
}

// errSealed is the cause of errors about what sealed sessions cannot have.
var errSealed = errors.New("is not possible in a sealed session")

// NotSealed returns an error of kind Invalid if cs is the view of a domain: what would be written
// outside of the store, and not sealed.
func (cs *ContextStore) NotSealed(what string) error {
	if !cs.Sealed() {
		return nil
	}
	return turnstone.NewError("executor.sealed", turnstone.KindInvalid, what, errSealed).
		WithHint("use a session that is not sealed: see docs/keys.md")
}

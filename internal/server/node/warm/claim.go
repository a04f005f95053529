package warm

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pool"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/sandboxes"
)

// A Taken is a sandbox that a claim has taken from the pool. Claim or Close it.
type Taken struct {
	spare  *sandboxes.Spare
	key    pool.Key
	Queued time.Duration // the wait for a sandbox
	Check  time.Duration // the health check
}

// Take takes a sandbox that can become the one that spec describes, and waits for it until ctx ends.
// The error is of kind NotFound if the pool keeps none: a sandbox has to be made. It is of kind
// Exhausted if too many claims wait, and otherwise says why the pool could not make one.
func (s *Service) Take(ctx context.Context, st *tenants.State, spec sandboxes.Spec) (*Taken, error) {
	switch {
	case s == nil:
		return nil, none("keeps no sandboxes")
	case spec.Session != "" || spec.Belongs != nil || spec.On != "" || spec.From != "":
		return nil, none("keeps no sandboxes of sessions or snapshots")
	case len(spec.Secrets) > 0:
		return nil, none("gives no secrets to a sandbox")
	}
	k := key(st.Tenant, spec)
	c, err := s.pool.Claim(ctx, k)
	if err != nil {
		return nil, err
	}
	return &Taken{spare: c.Machine.Spare, key: k, Queued: c.Queued, Check: c.Checked}, nil
}

// ChannelKey returns the key of the sandbox's channels, and whether it is known.
func (t *Taken) ChannelKey() (sandboxes.ChannelKey, bool) { return t.spare.Key() }

// Claim makes the sandbox the one that spec describes, and gives it a seal; nil: none. The error is
// of kind Unavailable or Dead if that was not possible, and a sandbox has to be made.
func (t *Taken) Claim(ctx context.Context, spec sandboxes.Spec, seal *sandboxes.Seal) (
	sandboxes.Claimed, error) {
	spec.Stranger = plain(spec).Stranger
	return t.spare.Claim(ctx, spec, seal)
}

// Close ends a sandbox that was not claimed. It does nothing to nil.
func (t *Taken) Close() error {
	if t == nil {
		return nil
	}
	return t.spare.Close()
}

// Cold reports whether a claim's error says that a sandbox has to be made.
func Cold(err error) bool {
	switch turnstone.KindOf(err) {
	case turnstone.KindNotFound, turnstone.KindUnavailable, turnstone.KindDead:
		return true
	}
	return false
}

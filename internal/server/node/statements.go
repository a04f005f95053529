package node

import (
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
)

// statements are the valid statements about the node's own key, and for whom each was made.
type statements struct {
	channel.Statements

	mu    sync.Mutex
	peers map[turnstone.Digest]admitted
	swept time.Time
}

type admitted struct {
	peer    Peer
	expires time.Time
}

// sweepPeers is the time between two removals of expired statements.
const sweepPeers = time.Minute

// admit adds a statement that was made for c.
func (s *statements) admit(signed *attest.Signed, c Client) error {
	if err := s.Add(signed.Digest, signed.Clients, signed.Expires); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.swept) > sweepPeers {
		s.swept = now
		for d, p := range s.peers {
			if now.After(p.expires) {
				delete(s.peers, d)
			}
		}
	}
	s.peers[signed.Digest] = admitted{Peer{Tenant: c.Tenant, Operator: c.Operator, Owner: c.Owner}, signed.Expires}
	return nil
}

// peer returns for whom a valid statement was made.
func (s *statements) peer(d turnstone.Digest) (Peer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.peers[d]
	return p.peer, ok
}

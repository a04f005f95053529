package node

import (
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/server/node/rights"
	"turnstone.dev/turnstone/internal/server/principal"
)

// statements are the valid statements about the node's own key, and for whom each was made.
type statements struct {
	channel.Statements

	mu    sync.Mutex
	peers map[turnstone.Digest]Peer
}

// init makes an empty set. s.mu is taken while the registry is locked, and not the other way round.
func (s *statements) init() {
	s.Max, s.peers = maxStatements, make(map[turnstone.Digest]Peer)
	s.Dropped = func(d turnstone.Digest) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.peers, d)
	}
}

// admit adds a statement that was made for c.
func (s *statements) admit(signed *attest.Signed, c Client) error {
	s.mu.Lock() // before the registry has it, because it may drop it at once
	s.peers[signed.Digest] = Peer{Tenant: c.Tenant, Operator: c.Operator, Owner: c.Owner,
		Rights: rights.Of(c.Tenant, principal.Of(c.Principal))}
	s.mu.Unlock()
	err := s.Add(signed.Digest, signed.Clients, signed.Expires)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.peers, signed.Digest)
	}
	return err
}

// peer returns for whom a valid statement was made.
func (s *statements) peer(d turnstone.Digest) (Peer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.peers[d]
	return p, ok
}

// sandboxKeys are the last known keys of sandboxes. A pause or a fork changes a sandbox's key.
type sandboxKeys struct {
	mu  sync.Mutex
	all map[turnstone.SandboxID]channel.PublicKey
}

func (k *sandboxKeys) get(id turnstone.SandboxID) (channel.PublicKey, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	own, known := k.all[id]
	return own, known
}

func (k *sandboxKeys) set(id turnstone.SandboxID, own channel.PublicKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil || len(k.all) >= maxKeys { // those in use are asked for once more
		k.all = make(map[turnstone.SandboxID]channel.PublicKey)
	}
	k.all[id] = own
}

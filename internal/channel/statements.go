package channel

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// Bounds of what a server admits.
const (
	maxStatements = 64
	MaxClients    = 16 // keys in one statement
)

// A Registry knows which clients the statements about a server's key admit.
type Registry interface {
	// Clients returns the keys that a statement admits. An error with FaultExpired tells the client
	// that the statement has expired, any other that it is not known.
	Clients(statement turnstone.Digest) ([]PublicKey, error)
}

// Statements is a Registry in memory. The zero value is empty; the methods are safe for concurrent
// use.
type Statements struct {
	Max int // valid statements; 0: 64

	mu  sync.Mutex
	all map[turnstone.Digest]admission
	now func() time.Time // nil: time.Now
}

type admission struct {
	clients []PublicKey
	expires time.Time
}

// Add admits clients under a statement until it expires. The error is of kind Invalid if there is
// no client, or a bad key, and Exhausted if too many statements are valid.
func (s *Statements) Add(statement turnstone.Digest, clients []PublicKey, expires time.Time) error {
	if _, err := turnstone.ParseDigest(string(statement)); err != nil {
		return turnstone.NewError("channel.admit", turnstone.KindInvalid, "the statement", err)
	}
	if len(clients) == 0 || len(clients) > MaxClients {
		return turnstone.Errorf("channel.admit", turnstone.KindInvalid, string(statement),
			"admits %d clients; it has to be 1 to %d", len(clients), MaxClients)
	}
	for _, c := range clients {
		if err := c.Check(); err != nil {
			return turnstone.NewError("channel.admit", turnstone.KindInvalid, "", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.time()
	for d, a := range s.all {
		if !now.Before(a.expires) {
			delete(s.all, d)
		}
	}
	most := cmp.Or(s.Max, maxStatements)
	if _, ok := s.all[statement]; !ok && len(s.all) >= most {
		return turnstone.Errorf("channel.admit", turnstone.KindExhausted, string(statement),
			"%d statements are valid already", most).
			WithHint("wait until one of them expires")
	}
	if s.all == nil {
		s.all = map[turnstone.Digest]admission{}
	}
	s.all[statement] = admission{slices.Clone(clients), expires}
	return nil
}

// Clients implements Registry.
func (s *Statements) Clients(statement turnstone.Digest) ([]PublicKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.all[statement]
	if !ok {
		return nil, turnstone.Errorf("channel.admit", turnstone.KindNotFound, string(statement),
			"is no statement about this key")
	}
	if !s.time().Before(a.expires) {
		return nil, Fail("channel.admit", FaultExpired, string(statement), "expired at %s",
			a.expires.UTC().Format(time.RFC3339))
	}
	return a.clients, nil
}

func (s *Statements) time() time.Time {
	if s.now != nil {
		return s.now()
	}
	return time.Now()
}

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
// use. When it is full, the client with the most statements loses its oldest ones: a client connects
// under the newest one that it has.
type Statements struct {
	Max int // valid statements; 0: 64
	// Dropped is called for each statement that was removed, and must not call methods; nil: nobody.
	Dropped func(statement turnstone.Digest)

	mu    sync.Mutex
	all   map[turnstone.Digest]admission
	added uint64           // statements so far
	swept time.Time        // when expired ones were removed
	now   func() time.Time // nil: time.Now
}

type admission struct {
	clients []PublicKey
	expires time.Time
	number  uint64 // in the order of Add
}

// sweepTime is the time between two removals of expired statements, if there is room.
const sweepTime = time.Minute

// Add admits clients under a statement until it expires. The error is of kind Invalid if there is
// no client, or a bad key, and Exhausted if too many clients have one valid statement each.
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
	most := cmp.Or(s.Max, maxStatements)
	_, known := s.all[statement]
	full := !known && len(s.all) >= most
	if now := s.time(); full || now.Sub(s.swept).Abs() >= sweepTime {
		s.sweep(now)
	}
	if !known && len(s.all) >= most && !s.evict() {
		return turnstone.Errorf("channel.admit", turnstone.KindExhausted, string(statement),
			"%d clients have valid statements already", most).
			WithHint("wait until one of them expires")
	}
	if s.all == nil {
		s.all = map[turnstone.Digest]admission{}
	}
	s.added++
	s.all[statement] = admission{slices.Clone(clients), expires, s.added}
	return nil
}

// Withdraw removes the statements that admit a client. Channels that are open stay.
func (s *Statements) Withdraw(client PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, a := range s.all {
		if slices.Contains(a.clients, client) {
			s.drop(d)
		}
	}
}

// sweep removes what has expired. s.mu is held.
func (s *Statements) sweep(now time.Time) {
	s.swept = now
	for d, a := range s.all {
		if !now.Before(a.expires) {
			s.drop(d)
		}
	}
}

// evict removes the oldest sixteenth of the statements of the client that has the most of them, and
// reports whether there is a client with two. s.mu is held.
func (s *Statements) evict() bool {
	of := map[PublicKey][]turnstone.Digest{}
	var most PublicKey
	for d, a := range s.all {
		c := a.clients[0]
		if of[c] = append(of[c], d); len(of[c]) > len(of[most]) {
			most = c
		}
	}
	his := of[most]
	if len(his) < 2 {
		return false
	}
	slices.SortFunc(his, func(a, b turnstone.Digest) int {
		return cmp.Compare(s.all[a].number, s.all[b].number)
	})
	for _, d := range his[:max(1, len(his)/16)] {
		s.drop(d)
	}
	return true
}

// drop removes a statement. s.mu is held.
func (s *Statements) drop(d turnstone.Digest) {
	delete(s.all, d)
	if s.Dropped != nil {
		s.Dropped(d)
	}
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

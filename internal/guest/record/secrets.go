package record

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// Bounds of the secrets of a sandbox.
const (
	MaxSecrets = 64
	MaxSecret  = 64 << 10 // bytes of KEY=VALUE
)

// Secrets are the secret variables of all commands, and who is told about them. Its methods are safe
// for concurrent use.
type Secrets struct {
	mu      sync.Mutex
	values  map[string]string // by their names
	follows map[*wire.Conn]bool
}

// Add adds variables, KEY=VALUE, and calls use with them after the connections that follow know
// their names, and the one that records in t their values. The error never has a value.
func (s *Secrets) Add(ctx context.Context, t *Table, all []string, use func([]string)) error {
	const op = wire.MethodSandboxAddSecrets
	fail := func(kind turnstone.Kind, format string, args ...any) error {
		return turnstone.Errorf(op, kind, "secrets", format, args...)
	}
	added := map[string]string{}
	for _, kv := range all {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok || name == "" || strings.ContainsRune(kv, 0):
			return fail(turnstone.KindInvalid, "one of them is not KEY=VALUE")
		case len(kv) > MaxSecret:
			return fail(turnstone.KindInvalid, "one of them has more than 64 KiB")
		}
		added[name] = value
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	values := map[string]string{}
	maps.Copy(values, s.values)
	maps.Copy(values, added)
	if len(values) > MaxSecrets {
		return fail(turnstone.KindExhausted, "the sandbox would have %d; the limit is %d",
			len(values), MaxSecrets)
	}
	s.values = values
	for c := range s.follows {
		_ = c.EmitSandboxSecretsAdded(ctx, &wire.SandboxSecretsAddedEvent{Names: s.names()})
	}
	if to := t.recorder(); to != nil {
		_ = to.EmitSandboxSecretsAdded(ctx, s.event()) // the next one that records asks for them
	}
	use(all)
	return nil
}

// Record makes c the connection that records in t, and tells it the secrets so far.
func (s *Secrets) Record(ctx context.Context, t *Table, c *wire.Conn) error {
	s.mu.Lock() // no secret is added in between
	defer s.mu.Unlock()
	t.Record(c)
	if len(s.values) == 0 {
		return nil
	}
	return c.EmitSandboxSecretsAdded(ctx, s.event())
}

// Follow makes c one of the connections that learn of new secrets, and returns the names so far.
func (s *Secrets) Follow(c *wire.Conn) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.follows == nil {
		s.follows = make(map[*wire.Conn]bool)
	}
	if !s.follows[c] {
		s.follows[c] = true
		context.AfterFunc(c.Context(), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.follows, c)
		})
	}
	if len(s.values) == 0 {
		return nil
	}
	return s.names()
}

// names returns the names of the secrets. s.mu is held.
func (s *Secrets) names() []string {
	return append([]string{}, slices.Sorted(maps.Keys(s.values))...)
}

// event returns all secrets, for the connection that records. s.mu is held.
func (s *Secrets) event() *wire.SandboxSecretsAddedEvent {
	e := &wire.SandboxSecretsAddedEvent{Names: s.names()}
	for _, name := range e.Names {
		e.Secrets = append(e.Secrets, name+"="+s.values[name])
	}
	return e
}

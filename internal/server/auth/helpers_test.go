package auth

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

const server = "https://turn.example.org"

// A fakeClock is a wall clock and a steady clock that the test moves.
type fakeClock struct {
	mu   sync.Mutex
	time time.Time
	up   time.Duration
}

func (f *fakeClock) wallTime() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.time
}

func (f *fakeClock) upTime() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.up
}

// pass lets time pass on both clocks.
func (f *fakeClock) pass(d time.Duration) { f.move(d, d) }

// move moves the two clocks.
func (f *fakeClock) move(wall, up time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.time, f.up = f.time.Add(wall), f.up+up
}

// A memory is a Register for tests.
type memory struct {
	mu     sync.Mutex
	list   []Revocation
	number uint64
	fail   error
	// failRevoke is what Revoke answers although it stored all.
	failRevoke error
}

func (m *memory) Revoke(_ context.Context, r ...Revocation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = append(m.list, r...)
	return errors.Join(m.fail, m.failRevoke)
}

func (m *memory) Revocations(context.Context, time.Time) ([]Revocation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list, m.fail
}

func (m *memory) Number(context.Context) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	return m.number, nil
}

// A setup is a controller's part and a gateway's.
type setup struct {
	time      *fakeClock
	clock     *Clock
	issuer    *Issuer
	register  *memory
	publisher *Publisher
	verifier  *TokenVerifier
}

func newSetup(t testing.TB, issuers ...OIDC) *setup {
	t.Helper()
	s := &setup{time: &fakeClock{time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)},
		register: &memory{}}
	s.clock = NewClock(s.time.wallTime, s.time.upTime)
	var err error
	s.issuer, err = OpenIssuer(t.Context(), server, filepath.Join(t.TempDir(), "keys", "token"),
		s.clock)
	check(t, err)
	s.publisher, err = NewPublisher(t.Context(), s.issuer, s.register)
	check(t, err)
	s.verifier, err = NewVerifier(VerifierConfig{Name: server, Clock: s.clock, Issuers: issuers,
		Stale: time.Hour})
	check(t, err)
	t.Cleanup(func() { check(t, s.verifier.Close()) })
	_, err = s.publisher.Follow(s.verifier)
	check(t, err)
	return s
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// usual are claims that the tests narrow or change.
func (s *setup) usual() Claims {
	return Claims{Tenant: "acme", Subject: "ci", Scopes: []Scope{TurnsRun, "sandboxes:*"},
		Sessions: []Pattern{"research", "ci-*"}, Templates: []Pattern{Any},
		Expires: s.time.wallTime().Add(time.Hour)}
}

func (s *setup) issue(t testing.TB, c Claims) Issued {
	t.Helper()
	i, err := s.issuer.Issue(t.Context(), c)
	check(t, err)
	return i
}

// header and payload are of a token that is accepted.
func (s *setup) header() map[string]any {
	return map[string]any{"alg": "EdDSA", "kid": s.issuer.id, "typ": ownType}
}

func (s *setup) payload() map[string]any {
	now := s.time.wallTime().Unix()
	return map[string]any{"iss": server, "aud": server, "sub": "ci", "jti": "tk_test", "iat": now,
		"exp": now + 3600, "tenant": "acme", "scope": "turns:run"}
}

// with returns m with a member set, or removed if value is nil.
func with(m map[string]any, name string, value any) map[string]any {
	if value == nil {
		delete(m, name)
	} else {
		m[name] = value
	}
	return m
}

var b64 = base64.RawURLEncoding

// craft signs any header and payload with the issuer's key.
func (s *setup) craft(t testing.TB, header, payload any) string {
	t.Helper()
	return craft(t, s.issuer.private, header, payload)
}

func craft(t testing.TB, key ed25519.PrivateKey, header, payload any) string {
	t.Helper()
	input := part(t, header) + "." + part(t, payload)
	return input + "." + b64.EncodeToString(ed25519.Sign(key, []byte(input)))
}

// part encodes a value; a string is taken as JSON text.
func part(t testing.TB, v any) string {
	t.Helper()
	if raw, ok := v.(string); ok {
		return b64.EncodeToString([]byte(raw))
	}
	b, err := json.Marshal(v)
	check(t, err)
	return b64.EncodeToString(b)
}

// refused checks that a token is refused with a reason, and that the error holds nothing of it.
func (s *setup) refused(t testing.TB, token string, want Reason) {
	t.Helper()
	p, err := s.verifier.Verify(t.Context(), token)
	if err == nil {
		t.Fatalf("accepted as %+v", p)
	}
	if got := ReasonOf(err); got != want {
		t.Errorf("refused as %q, want %q: %v", got, want, err)
	}
	reveals(t, err.Error()+turnstone.HintOf(err), token)
	if p.Tenant != "" || p.Scopes != nil || p.TokenID != "" {
		t.Errorf("a principal comes with the error: %+v", p)
	}
}

func (s *setup) accepted(t testing.TB, token string) Principal {
	t.Helper()
	p, err := s.verifier.Verify(t.Context(), token)
	check(t, err)
	return p
}

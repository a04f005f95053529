package gateway

import (
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	jose "github.com/go-jose/go-jose/v4"

	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/server/auth"
)

// An idp is an issuer of OpenID Connect, whose keys a test replaces.
type idp struct {
	*httptest.Server
	asked atomic.Int64 // for keys
	down  atomic.Bool

	mu   sync.Mutex
	keys map[string]ed25519.PrivateKey
}

func newIDP(t *testing.T) *idp {
	t.Helper()
	x := &idp{}
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if x.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		if r.URL.Path != "/keys" {
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": x.URL, "jwks_uri": x.URL + "/keys"})
			return
		}
		x.asked.Add(1)
		x.mu.Lock()
		defer x.mu.Unlock()
		var set jose.JSONWebKeySet
		for id, k := range x.keys {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.Public(), KeyID: id, Use: "sig"})
		}
		_ = json.NewEncoder(w).Encode(set)
	}))
	t.Cleanup(x.Close)
	return x
}

// publishes replaces the keys.
func (x *idp) publishes(all ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keys = map[string]ed25519.PrivateKey{}
	for _, id := range all {
		x.keys[id] = keyCalled(id)
	}
}

func keyCalled(id string) ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	copy(seed, id)
	return ed25519.NewKeyFromSeed(seed)
}

// token signs a token of half a day.
func (x *idp) token(t *testing.T, now time.Time, id string) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{
		Key: keyCalled(id), KeyID: id}}, (&jose.SignerOptions{}).WithType("JWT"))
	check(t, err)
	claims, err := json.Marshal(map[string]any{"iss": x.URL, "aud": serverName, "sub": "s", "jti": id,
		"iat": now.Unix(), "exp": now.Add(12 * time.Hour).Unix()})
	check(t, err)
	signed, err := s.Sign(claims)
	check(t, err)
	text, err := signed.CompactSerialize()
	check(t, err)
	return text
}

// TestIssuer: callers with tokens of an issuer, while it rotates its keys, and while it is down. Its
// keys are fetched once, and again only when they are old or a token names another one.
func TestIssuer(t *testing.T) {
	x, a := newIDP(t), newAuthority(t)
	v, err := auth.NewVerifier(auth.VerifierConfig{Name: serverName, Clock: a.clock,
		Stale: 24 * time.Hour, Issuers: []auth.OIDC{{Issuer: x.URL, Tenant: "acme", Fresh: time.Minute,
			Outage: time.Hour, Grant: auth.Grant{Scopes: []auth.Scope{auth.TurnsRead}}}}})
	check(t, err)
	t.Cleanup(func() { check(t, v.Close()) })
	_, err = a.publisher.Follow(v)
	check(t, err)
	s := newScene(t, func(o *Options, _ *ServeOptions) { o.Verifier = v })
	pass := func(d time.Duration) {
		a.time.wall.Add(int64(d))
		a.time.up.Add(int64(d))
	}
	begin := a.clock.Now()
	calls := func(id string) error {
		return get(t.Context(), s.client(t, x.token(t, begin, id), false))
	}
	stale := func(id string) {
		t.Helper()
		err := calls(id)
		refusedAs(t, err, connect.CodeUnavailable, "stale")
		if e := api.FromConnect(err); !api.Retryable(e) || api.RetryAfter(e) <= 0 {
			t.Errorf("not retryable: %+v", e)
		}
	}
	x.publishes("one")
	for range 3 {
		check(t, calls("one"))
	}
	if n := x.asked.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
	x.publishes("one", "two") // a rotation begins
	refusedAs(t, calls("two"), connect.CodeUnauthenticated, "key")
	pass(31 * time.Second)
	check(t, calls("two"))
	x.publishes("two") // and ends
	check(t, calls("one"))
	pass(2 * time.Minute)
	refusedAs(t, calls("one"), connect.CodeUnauthenticated, "key")
	check(t, calls("two"))

	x.down.Store(true)
	pass(30 * time.Minute)
	check(t, calls("two"))
	stale("three")
	pass(time.Hour)
	stale("two")
	x.down.Store(false)
	pass(31 * time.Second)
	check(t, calls("two"))
	refusedAs(t, calls("one"), connect.CodeUnauthenticated, "key")
	check(t, get(t.Context(), s.client(t, a.token(t), false))) // own tokens never were concerned
}

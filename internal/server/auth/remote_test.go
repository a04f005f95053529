package auth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"turnstone.dev/turnstone"
)

func trusts(x *idp) OIDC {
	return OIDC{Issuer: x.URL, Tenant: "acme", Tenants: []Pattern{"acme", "acme-*"},
		Scopes: []Scope{"turns:*", SessionsRead},
		Grant:  Grant{Scopes: []Scope{TurnsRun}, Sessions: []Pattern{"ci-*"}}}
}

func TestOIDC(t *testing.T) {
	x := newIDP(t)
	config := trusts(x)
	config.Algorithms = []string{"RS256", "PS256", "ES256", "ES384", "EdDSA"}
	s := newSetup(t, config)
	var keys []signingKey
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.ES384,
		jose.EdDSA} {
		keys = append(keys, newSigningKey(t, "key-"+string(alg), alg))
	}
	x.has(keys...)
	for _, k := range keys {
		p := s.accepted(t, k.sign(t, s, x.URL))
		if p.Issuer != x.URL || p.Tenant != "acme" || p.TokenID != "j1" || len(p.Scopes) != 1 ||
			!p.Has(TurnsRun) || len(p.Sessions) != 1 || p.Templates != nil {
			t.Errorf("%s: the principal is %+v", k.alg, p)
		}
	}
	if n := x.requests.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

// TestOIDCBounds: an issuer's tokens get at most what the configuration says.
func TestOIDCBounds(t *testing.T) {
	x := newIDP(t)
	config := trusts(x)
	config.Require = map[string]string{"repository": "acme/*"}
	s := newSetup(t, config)
	k := newSigningKey(t, "k", jose.EdDSA)
	x.has(k)
	sign := func(change ...any) string {
		return k.sign(t, s, x.URL, append([]any{"repository", "acme/app"}, change...)...)
	}
	for _, c := range []struct {
		scope any
		want  string
	}{
		{nil, "turns:run"},
		{"openid email", "turns:run"},
		{"openid turns:read", "turns:read"},
		{"turns:*", "turns:run turns:read turns:cancel"},
		{"nodes:* sandboxes:* sessions:*", "sessions:read"},
		{"nodes:read", ""},
		{"read:org", ""},
	} {
		p := s.accepted(t, sign("scope", c.scope))
		if got := joined(p.Scopes); got != c.want {
			t.Errorf("%v gives %q, want %q", c.scope, got, c.want)
		}
	}
	if p := s.accepted(t, sign("tenant", "acme-two", "sessions", []string{"x"})); p.Tenant !=
		"acme-two" || len(p.Sessions) != 1 || p.Sessions[0] != "x" {
		t.Errorf("the principal is %+v", p)
	}
	for _, bad := range [][]any{
		{"tenant", "other"}, {"tenant", "local"}, {"repository", nil}, {"repository", "evil/app"},
		{"repository", "acme/app/x"}, {"repository", []string{"acme/app"}},
		{"exp", s.time.wallTime().Add(25 * time.Hour).Unix()}, {"sub", nil},
	} {
		s.refused(t, sign(bad...), BadClaims)
	}
	s.refused(t, sign("aud", "https://other.example.org"), Audience)
	s.refused(t, k.sign(t, s, "https://evil.example.org"), WrongIssuer)
	s.refused(t, sign("exp", s.time.wallTime().Add(-time.Minute).Unix()), Expired)
	k.typ = "logout+jwt"
	s.refused(t, sign(), Malformed)
	k.typ = ""
	id := s.accepted(t, sign("jti", nil)).TokenID
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: x.URL, TokenID: id}))
	s.refused(t, sign("jti", nil), Revoked)
	s.accepted(t, sign())
	check(t, s.publisher.Revoke(t.Context(), Revocation{Issuer: x.URL, Key: "k"}))
	s.refused(t, sign(), Revoked)
}

// TestOIDCOperator: an issuer speaks for the operator's tenant only if that is listed by its name.
func TestOIDCOperator(t *testing.T) {
	x := newIDP(t)
	config := trusts(x)
	config.Tenants = []Pattern{Any, "l*", "loca[l]"}
	k := newSigningKey(t, "k", jose.EdDSA)
	x.has(k)
	s := newSetup(t, config)
	s.accepted(t, k.sign(t, s, x.URL, "tenant", "other"))
	s.refused(t, k.sign(t, s, x.URL, "tenant", OperatorTenant), BadClaims)
	config.Tenants = []Pattern{OperatorTenant}
	s = newSetup(t, config)
	s.accepted(t, k.sign(t, s, x.URL, "tenant", OperatorTenant))
}

// TestOIDCAlgorithms: the allow-list is the issuer's own, and a key is used for its algorithm only.
func TestOIDCAlgorithms(t *testing.T) {
	x := newIDP(t)
	config := trusts(x)
	config.Algorithms = []string{"RS256", "ES256"}
	s := newSetup(t, config)
	ed, rs := newSigningKey(t, "ed", jose.EdDSA), newSigningKey(t, "rs", jose.RS256)
	x.has(ed, rs)
	s.accepted(t, rs.sign(t, s, x.URL))
	s.refused(t, ed.sign(t, s, x.URL), Algorithm)
	rs.alg = jose.RS512
	s.refused(t, rs.sign(t, s, x.URL), Algorithm)
	es := newSigningKey(t, "rs", jose.ES256) // a token that calls the RSA key a curve's
	s.refused(t, es.sign(t, s, x.URL), Algorithm)
	// A key of the own issuer is none of this one's, and the other way round.
	own := signingKey{id: s.issuer.id, alg: jose.EdDSA, private: s.issuer.private}
	s.refused(t, own.sign(t, s, x.URL), Algorithm)
	s.refused(t, ed.sign(t, s, server), UnknownKey)
	for _, bad := range [][]string{{}, {"HS256"}, {"RS256", "none"}, {""}, {"dir"}} {
		config.Algorithms = bad
		if _, err := config.complete(server); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestOIDCRotation: a new key is fetched when a token names it, and an old one is refused when the
// issuer no longer has it.
func TestOIDCRotation(t *testing.T) {
	x := newIDP(t)
	s := newSetup(t, trusts(x))
	one, two := newSigningKey(t, "one", jose.EdDSA), newSigningKey(t, "two", jose.EdDSA)
	x.has(one)
	long := s.time.wallTime().Add(12 * time.Hour).Unix()
	first := one.sign(t, s, x.URL, "exp", long)
	second := two.sign(t, s, x.URL, "exp", long)
	s.accepted(t, first)
	x.has(one, two)
	s.refused(t, second, UnknownKey) // asked a moment ago
	s.time.pass(retryTime)
	s.accepted(t, second)
	x.has(two)
	s.accepted(t, first) // the cache
	s.time.pass(defaultFresh + time.Second)
	s.refused(t, first, UnknownKey)
	s.accepted(t, second)
	if n := x.requests.Load(); n != 3 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

// TestOIDCOutage: known keys survive an outage for the configured time, and unknown ones are not
// reported as the token's fault.
func TestOIDCOutage(t *testing.T) {
	x := newIDP(t)
	config := trusts(x)
	config.Fresh, config.Outage, config.MaxTTL = time.Minute, time.Hour, 24*time.Hour
	s := newSetup(t, config)
	k := newSigningKey(t, "k", jose.EdDSA)
	x.answer(down, down)
	token := k.sign(t, s, x.URL, "exp", s.time.wallTime().Add(10*time.Hour).Unix())
	s.refused(t, token, Stale) // never had keys
	x.has(k)
	x.answer(nil, nil)
	s.refused(t, token, Stale) // asked a moment ago
	s.time.pass(retryTime)
	s.accepted(t, token)
	unknown := newSigningKey(t, "unknown", jose.EdDSA)
	for _, discovery := range []func(http.ResponseWriter, *http.Request){down, nil} {
		x.answer(discovery, down)
		s.time.pass(20 * time.Minute)
		check(t, s.publisher.Beat(t.Context()))
		s.accepted(t, token)
		s.refused(t, unknown.sign(t, s, x.URL), Stale)
	}
	s.time.pass(22 * time.Minute)
	check(t, s.publisher.Beat(t.Context()))
	s.refused(t, token, Stale)
	x.answer(nil, nil)
	s.time.pass(retryTime)
	s.accepted(t, token)
	s.time.pass(retryTime)
	s.refused(t, unknown.sign(t, s, x.URL), UnknownKey)
}

// TestOIDCSingleFlight: however many tokens name keys that are not known, one exchange runs, and
// the next one waits for a while.
func TestOIDCSingleFlight(t *testing.T) {
	x := newIDP(t)
	s := newSetup(t, trusts(x))
	k := newSigningKey(t, "k", jose.EdDSA)
	x.has(k)
	release := make(chan struct{})
	x.answer(func(w http.ResponseWriter, r *http.Request) {
		<-release
		x.document(x.URL, x.URL+"/keys")(w, r)
	}, nil)
	token := k.sign(t, s, x.URL)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if _, err := s.verifier.Verify(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
	// A caller that gives up does not end the exchange of the others.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.verifier.Verify(gone, token); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone: %v", err)
	}
	close(release)
	wg.Wait()
	for i := range 100 {
		unknown := newSigningKey(t, fmt.Sprint("unknown", i), jose.EdDSA)
		s.refused(t, unknown.sign(t, s, x.URL), UnknownKey)
	}
	if n := x.requests.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

// TestCloseEndsExchange: Close does not wait for an issuer that hangs.
func TestCloseEndsExchange(t *testing.T) {
	x := newIDP(t)
	s := newSetup(t, trusts(x))
	asked := make(chan struct{})
	x.answer(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}, nil)
	done := make(chan error)
	go func() {
		_, err := s.verifier.Verify(context.Background(),
			newSigningKey(t, "k", jose.EdDSA).sign(t, s, x.URL))
		done <- err
	}()
	<-asked
	check(t, s.verifier.Close())
	if err := <-done; ReasonOf(err) != Stale {
		t.Errorf("the error is %v", err)
	}
}

// TestOIDCAnswers: what an issuer or somebody in its place answers is bounded, and leads nowhere
// that is not trusted. Nothing of it is in the log except addresses.
func TestOIDCAnswers(t *testing.T) {
	redirect := func(to string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }
	}
	said := func(text string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
	}
	x, key := newIDP(t), newSigningKey(t, "k", jose.EdDSA)
	x.has(key)
	for name, c := range map[string]struct {
		discovery, jwks func(http.ResponseWriter, *http.Request)
	}{
		"large discovery": {func(w http.ResponseWriter, r *http.Request) {
			x.document(x.URL, x.URL+"/keys")(w, r)
			_, _ = w.Write(bytes.Repeat([]byte(" "), maxDiscovery))
		}, nil},
		"large keys": {nil, func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: x.keys})
			_, _ = w.Write(bytes.Repeat([]byte(" "), maxJWKS))
		}},
		"other issuer":           {x.document("https://evil.example.org", x.URL+"/keys"), nil},
		"keys by http":           {x.document(x.URL, "http://keys.example.org/"), nil},
		"keys in a file":         {x.document(x.URL, "file:///etc/passwd"), nil},
		"keys with a password":   {x.document(x.URL, "http://user:pass@127.0.0.1/"), nil},
		"no address":             {said(`{"issuer":"` + x.URL + `"}`), nil},
		"twice":                  {said(`{"issuer":"` + x.URL + `","issuer":"` + x.URL + `"}`), nil},
		"text":                   {said("<html>SECRETSECRET</html>"), nil},
		"redirect to a file":     {redirect("file:///etc/passwd"), nil},
		"redirect to the net":    {redirect("http://keys.example.org/"), nil},
		"redirect of the keys":   {nil, redirect("ftp://127.0.0.1/keys")},
		"redirect in a circle":   {nil, redirect("/keys")},
		"keys are text":          {nil, said("SECRETSECRET")},
		"keys are none":          {nil, said(`{"keys":[]}`)},
		"keys are null":          {nil, said(`{"keys":null}`)},
		"keys are symmetric":     {nil, said(`{"keys":[{"kty":"oct","kid":"k","k":"SECRETSECRET"}]}`)},
		"keys have a name twice": {nil, said(`{"keys":[],"keys":[]}`)},
		"status":                 {nil, down},
	} {
		x.answer(c.discovery, c.jwks)
		var out bytes.Buffer
		s := newSetup(t)
		v, err := NewVerifier(VerifierConfig{Name: server, Clock: s.clock, Issuers: []OIDC{trusts(x)},
			Log: slog.New(slog.NewTextHandler(&out, nil))})
		check(t, err)
		_, err = s.publisher.Follow(v)
		check(t, err)
		token := key.sign(t, s, x.URL)
		before := x.requests.Load()
		_, err = v.Verify(t.Context(), token)
		if ReasonOf(err) != Stale {
			t.Errorf("%s: %v", name, err)
		}
		if n := x.requests.Load() - before; n > redirects+1 {
			t.Errorf("%s: %d requests", name, n)
		}
		check(t, v.Close())
		if out.Len() == 0 {
			t.Errorf("%s: nothing is in the log", name)
		}
		reveals(t, out.String()+err.Error(), token)
		if strings.Contains(out.String(), "SECRET") || strings.Contains(out.String(), "user:pass") {
			t.Errorf("%s: the log has %s", name, out.String())
		}
	}
}

// elsewhere answers every address as the issuer does, also those without https.
type elsewhere struct{ x *idp }

func (e elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	e.x.Config.Handler.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

// TestOIDCDowngrade: keys come only from an address that nobody on the way can answer for, although
// these addresses answer with the right keys.
func TestOIDCDowngrade(t *testing.T) {
	x, key := newIDP(t), newSigningKey(t, "k", jose.EdDSA)
	x.has(key)
	const issuer = "https://idp.example.org"
	there := func(to string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.String() == to {
				_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: x.keys})
				return
			}
			http.Redirect(w, r, to, http.StatusFound)
		}
	}
	for _, c := range []struct {
		name, keys string
		jwks       func(http.ResponseWriter, *http.Request)
		want       Reason
	}{
		{"https", "https://keys.example.org/keys", nil, ""},
		{"redirect to https", issuer + "/keys", there("https://keys.example.org/keys"), ""},
		{"keys by http", "http://idp.example.org/keys", nil, Stale},
		{"keys by http of this machine", "http://127.0.0.1/keys", nil, Stale},
		{"keys by ftp", "ftp://idp.example.org/keys", nil, Stale},
		{"redirect to http", issuer + "/keys", there("http://idp.example.org/keys"), Stale},
		{"redirect to this machine", issuer + "/keys", there("http://localhost/keys"), Stale},
		{"redirect with a password", issuer + "/keys", there("https://u:p@a.example/keys"), Stale},
		{"of this machine", "http://localhost/keys", nil, ""},
		{"of this machine, keys by http", "http://keys.example.org/keys", nil, Stale},
		{"of this machine, redirect", x.URL + "/keys", there("http://keys.example.org/"), Stale},
	} {
		config := trusts(x)
		if config.Issuer = issuer; strings.HasPrefix(c.name, "of this machine") {
			config.Issuer = x.URL
		}
		x.answer(x.document(config.Issuer, c.keys), c.jwks)
		s := newSetup(t)
		v, err := NewVerifier(VerifierConfig{Name: server, Clock: s.clock, Issuers: []OIDC{config},
			Transport: elsewhere{x}})
		check(t, err)
		_, err = s.publisher.Follow(v)
		check(t, err)
		_, err = v.Verify(t.Context(), key.sign(t, s, config.Issuer))
		if ReasonOf(err) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
		check(t, v.Close())
	}
}

// TestOIDCRedirect: a redirect within what is trusted is followed.
func TestOIDCRedirect(t *testing.T) {
	x, elsewhere := newIDP(t), newIDP(t)
	s := newSetup(t, trusts(x))
	k := newSigningKey(t, "k", jose.ES256)
	elsewhere.has(k)
	x.answer(nil, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+"/keys", http.StatusFound)
	})
	s.accepted(t, k.sign(t, s, x.URL))
}

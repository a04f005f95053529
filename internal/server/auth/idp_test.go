package auth

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	jose "github.com/go-jose/go-jose/v4"
)

// An idp is an OpenID Connect issuer on a loopback address.
type idp struct {
	*httptest.Server
	requests atomic.Int32 // for keys

	mu        sync.Mutex
	keys      []jose.JSONWebKey
	discovery func(w http.ResponseWriter, r *http.Request) // nil: the right document
	jwks      func(w http.ResponseWriter, r *http.Request)
}

func newIDP(t testing.TB) *idp {
	t.Helper()
	x := &idp{}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		x.mu.Lock()
		f := x.discovery
		x.mu.Unlock()
		if f == nil {
			f = x.document(x.URL, x.URL+"/keys")
		}
		f(w, r)
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, r *http.Request) {
		x.requests.Add(1)
		x.mu.Lock()
		f, keys := x.jwks, x.keys
		x.mu.Unlock()
		if f != nil {
			f(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: keys})
	})
	x.Server = httptest.NewServer(mux)
	t.Cleanup(x.Close)
	return x
}

func (x *idp) document(issuer, keys string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": issuer, "jwks_uri": keys,
			"id_token_signing_alg_values_supported": []string{"RS256"}})
	}
}

// answer replaces what the issuer answers; nil: the right documents.
func (x *idp) answer(discovery, jwks func(http.ResponseWriter, *http.Request)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.discovery, x.jwks = discovery, jwks
}

func down(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }

// has replaces the keys.
func (x *idp) has(keys ...signingKey) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keys = nil
	for _, k := range keys {
		x.keys = append(x.keys, jose.JSONWebKey{Key: k.private.Public(), KeyID: k.id, Use: "sig"})
	}
}

type signingKey struct {
	id      string
	alg     jose.SignatureAlgorithm
	private crypto.Signer
	typ     jose.ContentType // empty: JWT
}

var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
})

func newSigningKey(t testing.TB, id string, alg jose.SignatureAlgorithm) signingKey {
	t.Helper()
	var k crypto.Signer
	var err error
	switch alg {
	case jose.EdDSA:
		_, k, err = ed25519.GenerateKey(rand.Reader)
	case jose.ES384:
		k, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case jose.ES256:
		k, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		k = rsaKey()
	}
	check(t, err)
	return signingKey{id: id, alg: alg, private: k}
}

// sign makes a token; a nil value leaves a claim out.
func (k signingKey) sign(t testing.TB, s *setup, iss string, change ...any) string {
	t.Helper()
	now := s.time.wallTime().Unix()
	m := map[string]any{"iss": iss, "aud": server, "sub": "repo:acme/app", "iat": now,
		"exp": now + 600, "jti": "j1"}
	for i := 0; i < len(change); i += 2 {
		with(m, change[i].(string), change[i+1])
	}
	b, err := json.Marshal(m)
	check(t, err)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: k.alg,
		Key: jose.JSONWebKey{Key: k.private, KeyID: k.id}}, (&jose.SignerOptions{}).WithType(cmp.Or(k.typ, "JWT")))
	check(t, err)
	jws, err := signer.Sign(b)
	check(t, err)
	token, err := jws.CompactSerialize()
	check(t, err)
	return token
}

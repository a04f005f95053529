package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
)

// A claimant makes tokens of an issuer, right and wrong ones.
type claimant struct {
	t              *testing.T
	header, claims map[string]any // of a right token
	sign           func(input []byte) []byte
	public         crypto.PublicKey
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	check(t, err)
	return base64.RawURLEncoding.EncodeToString(b)
}

// token returns a token with other fields of the header and other claims; nil takes one away.
func (c *claimant) token(header, claims map[string]any) string {
	c.t.Helper()
	input := c.input(header, claims)
	return input + "." + base64.RawURLEncoding.EncodeToString(c.sign([]byte(input)))
}

func (c *claimant) input(header, claims map[string]any) string {
	c.t.Helper()
	merged := func(a, b map[string]any) map[string]any {
		m := maps.Clone(a)
		maps.Copy(m, b)
		maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
		return m
	}
	return encode(c.t, merged(c.header, header)) + "." + encode(c.t, merged(c.claims, claims))
}

// symmetric signs with a public key as the secret of HS256.
func (c *claimant) symmetric(secret []byte) string {
	c.t.Helper()
	input := c.input(map[string]any{"alg": "HS256"}, nil)
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(input))
	return input + "." + base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// own returns the claimant that has the controller's key, which nobody else should have.
func own(t *testing.T, controller *process) *claimant {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(controller.home, "keys", "token"))
	check(t, err)
	block, _ := pem.Decode(b)
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	check(t, err)
	c := &claimant{t: t, public: k.(ed25519.PrivateKey).Public(),
		sign: func(in []byte) []byte { return ed25519.Sign(k.(ed25519.PrivateKey), in) }}
	for i, to := range []*map[string]any{&c.header, &c.claims} {
		part := strings.Split(token(t, controller), ".")[i]
		b, err := base64.RawURLEncoding.DecodeString(part)
		check(t, err)
		check(t, json.Unmarshal(b, to))
	}
	return c
}

// An issuer is one of OpenID Connect that publishes a key.
type issuer struct {
	*httptest.Server
	down atomic.Bool
}

func newIssuer(t *testing.T) (*issuer, *claimant) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	x := &issuer{}
	x.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case x.down.Load():
			w.WriteHeader(http.StatusBadGateway)
		case r.URL.Path == "/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": x.URL, "jwks_uri": x.URL + "/keys"})
		default:
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
				{Key: k.Public(), KeyID: "k1", Use: "sig"}}})
		}
	}))
	t.Cleanup(x.Close)
	now := time.Now().Unix()
	return x, &claimant{t: t, public: k.Public(),
		header: map[string]any{"alg": "ES256", "kid": "k1", "typ": "JWT"},
		claims: map[string]any{"iss": x.URL, "aud": "turnstone", "sub": "repo:acme/app", "iat": now,
			"exp": now + 600, "jti": "j1"},
		sign: func(in []byte) []byte {
			sum := sha256.Sum256(in)
			r, s, err := ecdsa.Sign(rand.Reader, k, sum[:])
			check(t, err)
			b := make([]byte, 64)
			r.FillBytes(b[:32])
			s.FillBytes(b[32:])
			return b
		}}
}

// wrong returns tokens that no server may accept, and the reasons.
func (c *claimant) wrong() map[string][2]string {
	c.t.Helper()
	now := time.Now().Unix()
	der, err := x509.MarshalPKIXPublicKey(c.public)
	check(c.t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	raw := der
	if k, ok := c.public.(ed25519.PublicKey); ok {
		raw = k
	}
	good := c.token(nil, nil)
	cut := strings.LastIndex(good, ".") + 1
	none := func(alg string) string { return c.input(map[string]any{"alg": alg}, nil) + "." }
	return map[string][2]string{
		"expired":                 {c.token(nil, map[string]any{"iat": now - 900, "exp": now - 600}), "expired"},
		"not yet valid":           {c.token(nil, map[string]any{"nbf": now + 400}), "not_yet_valid"},
		"issued in the future":    {c.token(nil, map[string]any{"iat": now + 400}), "not_yet_valid"},
		"another audience":        {c.token(nil, map[string]any{"aud": "https://other"}), "audience"},
		"another issuer":          {c.token(nil, map[string]any{"iss": "https://other"}), "issuer"},
		"no algorithm":            {none("none"), "algorithm"},
		"no algorithm, disguised": {none("NoNe"), "algorithm"},
		"the public key's bytes":  {c.symmetric(raw), "algorithm"},
		"the public key's text":   {c.symmetric(text), "algorithm"},
		"an unknown key":          {c.token(map[string]any{"kid": "other"}, nil), "key"},
		"a key of its own":        {c.token(map[string]any{"jwk": map[string]any{"kty": "EC"}}, nil), "header"},
		"a key elsewhere":         {c.token(map[string]any{"jku": "https://x"}, nil), "header"},
		"another's signature":     {good[:cut] + strings.Repeat("A", 86), "signature"},
		"other claims":            {c.input(nil, map[string]any{"sub": "x"}) + "." + good[cut:], "signature"},
		"no token":                {"a.b", "malformed"},
	}
}

// ways are the paths of a caller: a control call, a channel, and a command in the clear.
func ways(t *testing.T, url, token string) (answers []*http.Response) {
	t.Helper()
	for _, c := range []struct{ method, path, kind string }{
		{http.MethodPost, "/turnstone.v1.TurnService/ListTurns", "application/json"},
		{http.MethodPost, "/turnstone.v1.TurnService/ListTurns", "application/grpc-web+json"},
		{http.MethodGet, "/turnstone/v1/nodes/n1/channel", ""},
		{http.MethodGet, "/turnstone/v1/sandboxes/sb_0123456789abcdefgh/channel", ""},
		{http.MethodPost, "/turnstone/v1/plain/run", "text/markdown"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, url+c.path, strings.NewReader("{}"))
		check(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		if c.kind != "" {
			r.Header.Set("Content-Type", c.kind)
		} else {
			for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket",
				"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="} {
				r.Header.Set(k, v)
			}
		}
		answer, err := http.DefaultClient.Do(r)
		check(t, err)
		b, err := io.ReadAll(answer.Body)
		check(t, err)
		_ = answer.Body.Close()
		answer.Body = io.NopCloser(strings.NewReader(string(b)))
		if len(token) > 20 && strings.Contains(string(b), token[len(token)-20:]) {
			t.Errorf("%s: the answer has the token", c.path)
		}
		answers = append(answers, answer)
	}
	return answers
}

// refusedAs checks that a token is refused everywhere with a reason.
func refusedAs(t *testing.T, url, token, reason string) {
	t.Helper()
	for _, a := range ways(t, url, token) {
		if got := a.Header.Get("WWW-Authenticate"); !strings.Contains(got,
			`error="invalid_token", error_description="`+reason+`"`) {
			t.Errorf("%s: %d, %s, want %s", a.Request.URL.Path, a.StatusCode, got, reason)
		}
		grpc := strings.HasPrefix(a.Header.Get("Content-Type"), "application/grpc")
		if a.StatusCode != http.StatusUnauthorized && !grpc {
			t.Errorf("%s: %d", a.Request.URL.Path, a.StatusCode)
		}
	}
}

// TestRefusedTokens: a gateway in a process of its own refuses each wrong token, of the server's own
// issuer and of another one, on every path. The controller's process hears of none.
func TestRefusedTokens(t *testing.T) {
	issuer, theirs := newIssuer(t)
	silent, absent := newIssuer(t)
	silent.down.Store(true)
	x := startPair(t, "controller", fmt.Sprintf(`TURN_SERVER_ISSUERS=[{issuer = %q, tenant = "acme", `+
		`grant_scopes = ["turns:read"], grant_sessions = ["*"]}, {issuer = %q, tenant = "acme", `+
		`grant_scopes = ["turns:read"]}]`, issuer.URL, silent.URL))
	mine := own(t, x.controller)
	var all []string
	for name, c := range map[string]*claimant{"own": mine, "oidc": theirs} {
		t.Run(name, func(t *testing.T) {
			good := c.token(nil, nil)
			if status, got := call(t, http.DefaultClient, x.url, good, "TurnService/ListTurns",
				"{}"); status != http.StatusOK {
				t.Fatalf("a right token: %d %s", status, got)
			}
			all = append(all, good[strings.LastIndex(good, "."):])
			for what, w := range c.wrong() {
				t.Run(what, func(t *testing.T) { refusedAs(t, x.url, w[0], w[1]) })
				all = append(all, w[0][strings.LastIndex(w[0], "."):])
			}
		})
	}
	// A right token that grants something else.
	for _, method := range []string{"ServerService/ListNodes", "SandboxService/ListSandboxes"} {
		status, got := call(t, http.DefaultClient, x.url, theirs.token(nil, nil), method, "{}")
		if r := refusalOf(t, got); status != http.StatusForbidden ||
			r.Details[0].Debug.Reason != "denied" || r.Details[0].Debug.Retryable {
			t.Errorf("%s: %d %s", method, status, got)
		}
	}
	// An issuer that does not answer is not the token's fault.
	status, got := call(t, http.DefaultClient, x.url, absent.token(nil, nil), "TurnService/ListTurns",
		"{}")
	if r := refusalOf(t, got); status != http.StatusServiceUnavailable ||
		r.Details[0].Debug.Reason != "stale" || !r.Details[0].Debug.Retryable ||
		r.Details[0].Debug.RetryAfter == "" {
		t.Errorf("an issuer that is down: %d %s", status, got)
	}
	revoked(t, x)
	endless := strings.Repeat("A", 1<<20)
	for _, a := range ways(t, x.url, endless) {
		if a.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a token of a megabyte at %s: %d", a.Request.URL.Path, a.StatusCode)
		}
	}
	rotated(t, x)
	good := own(t, x.controller).token(nil, nil)
	if status, got := call(t, http.DefaultClient, x.url, good, "TurnService/ListTurns", "{}"); status !=
		http.StatusOK {
		t.Errorf("afterwards: %d %s", status, got)
	}
	kept := all[:0]
	for _, s := range all {
		if len(s) > 20 {
			kept = append(kept, s)
		}
	}
	x.end(t, kept...)
}

// revoked: a token that the operator revokes at the controller is refused by the gateway's process.
func revoked(t *testing.T, x *pair) {
	t.Helper()
	operator := &client{t, filepath.Join(t.TempDir(), "home"),
		[]string{"TURN_HOST=" + x.controller.socket()}}
	var made struct{ ID, Token string }
	check(t, json.Unmarshal([]byte(operator.must("token", "create", "--name", "short", "--ttl", "1h",
		"--json")), &made))
	if status, got := call(t, http.DefaultClient, x.url, made.Token, "TurnService/ListTurns",
		"{}"); status != http.StatusOK {
		t.Errorf("before: %d %s", status, got)
	}
	operator.must("token", "revoke", made.ID)
	waitFor(t, func() string { // the gateway has heard of it: before, it is the controller that refuses
		if got := ways(t, x.url, made.Token)[0].Header.Get("WWW-Authenticate"); !strings.Contains(got, "revoked") {
			return got
		}
		return ""
	})
	status, got := call(t, http.DefaultClient, x.url, made.Token, "TurnService/ListTurns", "{}")
	if status != http.StatusUnauthorized || refusalOf(t, got).Details[0].Debug.Reason != "revoked" {
		t.Errorf("after: %d %s", status, got)
	}
	refusedAs(t, x.url, made.Token, "revoked")
}

// rotated: a controller whose key was removed while it was away signs with another one, as
// docs/server.md says, and the gateway's process refuses all tokens of the old key.
func rotated(t *testing.T, x *pair) {
	t.Helper()
	old := token(t, x.controller)
	x.controller.end()
	check(t, os.Remove(filepath.Join(x.controller.home, "keys", "token")))
	x.again()
	next := token(t, x.controller)
	waitFor(t, func() string { // until the gateway has heard of the key
		status, got := call(t, http.DefaultClient, x.url, next, "TurnService/ListTurns", "{}")
		if status != http.StatusOK {
			return fmt.Sprint(status, " ", got)
		}
		return ""
	})
	refusedAs(t, x.url, old, "key")
}

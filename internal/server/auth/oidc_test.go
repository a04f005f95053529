package auth

import (
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"turnstone.dev/turnstone"
)

func TestOIDCConfig(t *testing.T) {
	good := OIDC{Issuer: "https://a.example", Tenant: "a"}
	if _, err := good.complete(server); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*OIDC){
		"http":           func(o *OIDC) { o.Issuer = "http://a.example" },
		"http like":      func(o *OIDC) { o.Issuer = "http://localhost.evil.example" },
		"no URL":         func(o *OIDC) { o.Issuer = "a.example" },
		"password":       func(o *OIDC) { o.Issuer = "https://u:SECRET@a.example" },
		"long":           func(o *OIDC) { o.Issuer += "/" + strings.Repeat("x", maxText) },
		"query":          func(o *OIDC) { o.Issuer = "https://a.example?x=1" },
		"no tenant":      func(o *OIDC) { o.Tenant = "" },
		"tenant":         func(o *OIDC) { o.Tenant = "a/b" },
		"scope":          func(o *OIDC) { o.Scopes = []Scope{"turns:fly"} },
		"granted scope":  func(o *OIDC) { o.Grant.Scopes = []Scope{"*"} },
		"pattern":        func(o *OIDC) { o.Tenants = []Pattern{"["} },
		"session":        func(o *OIDC) { o.Grant.Sessions = []Pattern{""} },
		"required claim": func(o *OIDC) { o.Require = map[string]string{"x": "["} },
		"fresh":          func(o *OIDC) { o.Fresh = 25 * time.Hour },
		"outage":         func(o *OIDC) { o.Outage = 8 * 24 * time.Hour },
		"lifetime":       func(o *OIDC) { o.MaxTTL = -1 },
	} {
		o := good
		change(&o)
		_, err := o.complete(server)
		if turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestJWKS: what cannot be used is left out, and does not spoil the rest.
func TestJWKS(t *testing.T) {
	ed := newSigningKey(t, "ok", jose.EdDSA)
	b, err := jose.JSONWebKey{Key: ed.private.Public(), KeyID: "ok"}.MarshalJSON()
	check(t, err)
	good := string(b)
	private, err := jose.JSONWebKey{Key: ed.private, KeyID: "private"}.MarshalJSON()
	check(t, err)
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil { // newer versions of Go make none
		small = &rsa.PrivateKey{PublicKey: rsa.PublicKey{N: rsaKey().N, E: 2}}
	}
	weak, err := jose.JSONWebKey{Key: &small.PublicKey, KeyID: "weak"}.MarshalJSON()
	check(t, err)
	member := func(m string) string { return strings.TrimSuffix(good, "}") + "," + m + "}" }
	renamed := func(id string) string { return strings.Replace(good, `"ok"`, `"`+id+`"`, 1) }
	for _, skipped := range []string{
		`{}`, `null`, `5`, `"x"`, `{"kty":"oct","kid":"o","k":"AAAA"}`, string(private), string(weak),
		`{"kty":"XX","kid":"x"}`, `{"kty":"OKP","crv":"X25519","kid":"x","x":"AAAA"}`,
		`{"kty":"OKP","crv":"Ed25519","kid":"x","x":"AAAA"}`,
		`{"kty":"EC","crv":"P-256","kid":"x","x":"AAAA","y":"AAAA"}`,
		`{"kty":"RSA","kid":"x","n":"AAAA","e":"AQAB"}`,
		strings.Replace(good, `"kid":"ok",`, "", 1),
		renamed("enc")[:len(renamed("enc"))-1] + `,"use":"enc"}`,
		renamed("ops")[:len(renamed("ops"))-1] + `,"key_ops":["sign"]}`,
		renamed("alg")[:len(renamed("alg"))-1] + `,"alg":"RS256"}`,
		renamed("hs")[:len(renamed("hs"))-1] + `,"alg":"HS256"}`,
	} {
		keys, err := decodeJWKS([]byte(`{"keys":[` + skipped + "," + good + `]}`))
		if err != nil || len(keys) != 1 || keys["ok"].key == nil {
			t.Errorf("%s: %v, %v", skipped, keys, err)
		}
	}
	for _, taken := range []string{`"use":"sig"`, `"key_ops":["verify"]`, `"alg":"EdDSA"`,
		`"x5u":"https://evil.example.org"`, `"x5c":["AAAA"]`, `"other":{"a":1}`} {
		if keys, err := decodeJWKS([]byte(`{"keys":[` + member(taken) + `]}`)); err != nil ||
			len(keys) != 1 {
			t.Errorf("%s: %v, %v", taken, keys, err)
		}
	}
	if _, err := decodeJWKS([]byte(`{"keys":[` + member(`"kty":"oct"`) + `]}`)); err == nil {
		t.Error("a key has a name twice")
	}
	// Two keys with one ID: nobody knows which of them a token means.
	if _, err := decodeJWKS([]byte(`{"keys":[` + good + "," + good + `]}`)); err == nil {
		t.Error("two keys have one ID")
	}
	many := good
	for n := range maxKeys {
		if keys, err := decodeJWKS([]byte(`{"keys":[` + many + `]}`)); err != nil ||
			len(keys) != n+1 {
			t.Fatalf("%d keys: %v", n+1, err)
		}
		many += "," + renamed(fmt.Sprint(n))
	}
	if _, err := decodeJWKS([]byte(`{"keys":[` + many + `]}`)); err == nil {
		t.Error("the number of keys is not bounded")
	}
}

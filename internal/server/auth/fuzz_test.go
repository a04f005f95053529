package auth

import (
	"crypto/ed25519"
	"strings"
	"testing"

	jose "github.com/go-jose/go-jose/v4"
)

// FuzzToken parses and verifies tokens. A token that is accepted is the one that was signed, byte
// for byte: it has one spelling.
func FuzzToken(f *testing.F) {
	s := newSetup(f)
	good := s.craft(f, s.header(), s.payload())
	parts := strings.Split(good, ".")
	f.Add(good)
	f.Add(parts[0] + "." + parts[1] + ".")
	f.Add(part(f, `{"alg":"none"}`) + "." + parts[1] + ".")
	f.Add(part(f, `{"alg":"EdDSA","alg":"none","kid":"x"}`) + ".e30.AA")
	f.Add(part(f, `{"alg":"RS256","kid":"`+s.issuer.id+`","jwk":{}}`) + "." + parts[1] + ".AA")
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := s.verifier.Verify(t.Context(), token)
		if err == nil && token != good {
			t.Fatalf("accepted as %+v", p)
		}
		if err != nil {
			if ReasonOf(err) == "" {
				t.Errorf("an error without a reason: %v", err)
			}
			if len(err.Error()) > 2000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		}
	})
}

// FuzzClaims gives claims of any form to the verifier, with a right signature.
func FuzzClaims(f *testing.F) {
	s := newSetup(f)
	b, err := b64.DecodeString(part(f, s.payload()))
	check(f, err)
	f.Add(string(b))
	f.Add(`{"iss":"` + server + `","exp":1e99}`)
	f.Add(`{"iss":"` + server + `","aud":["` + server + `"],"exp":1772370000,"iat":0.5}`)
	f.Fuzz(func(t *testing.T, claims string) {
		p, err := s.verifier.Verify(t.Context(), s.craft(t, s.header(), claims))
		if err != nil {
			if ReasonOf(err) == "" {
				t.Errorf("an error without a reason: %v", err)
			}
			return
		}
		if checkTenant(p.Tenant) != nil || p.Subject == "" || p.TokenID == "" || p.Expires.IsZero() ||
			p.Sandbox != "" && !isSandbox(string(p.Sandbox)) {
			t.Errorf("accepted as %+v", p)
		}
		for _, c := range p.Scopes {
			if !known(c) {
				t.Errorf("the scope %q is granted", c)
			}
		}
	})
}

// FuzzJWKS decodes sets of keys. What it returns can verify, and is no private or symmetric key.
func FuzzJWKS(f *testing.F) {
	for _, alg := range []jose.SignatureAlgorithm{jose.EdDSA, jose.ES256, jose.RS256} {
		k := newSigningKey(f, "k", alg)
		b, err := jose.JSONWebKey{Key: k.private.Public(), KeyID: "k", Use: "sig"}.MarshalJSON()
		check(f, err)
		f.Add([]byte(`{"keys":[` + string(b) + `]}`))
	}
	f.Add([]byte(`{"keys":[{"kty":"oct","kid":"k","k":"AAAA"},{"kty":"EC","kid":"k","crv":"P-256"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := decodeJWKS(b)
		if err != nil {
			return
		}
		for id, k := range keys {
			if id == "" || usable(k.key) != nil || len(keys) > maxKeys {
				t.Errorf("%q is %+v", id, k)
			}
		}
	})
}

// FuzzDiscovery decodes discovery documents.
func FuzzDiscovery(f *testing.F) {
	f.Add([]byte(`{"issuer":"https://a.example","jwks_uri":"https://a.example/keys"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		at, err := decodeDiscovery(b, "https://a.example")
		if err == nil && (at == "" || len(at) > 1000) {
			t.Errorf("the address is %q", at)
		}
	})
}

// FuzzBulletin decodes bulletins; one that is decoded has an encoding.
func FuzzBulletin(f *testing.F) {
	s := newSetup(f)
	b, err := s.publisher.last.Encode()
	check(f, err)
	f.Add(b)
	f.Add([]byte(`{"number":3,"keys":[],"revoked":[{"iss":"a","jti":"b"},{"iss":"a","kid":"c"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := DecodeBulletin(b)
		if err != nil {
			return
		}
		again, err := x.Encode()
		check(t, err)
		if _, err := DecodeBulletin(again); err != nil {
			t.Error(err)
		}
	})
}

// FuzzOwnKeyFile decodes private keys.
func FuzzOwnKeyFile(f *testing.F) {
	_, b, err := newKey()
	check(f, err)
	f.Add(b)
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := decodePrivate(b)
		if err == nil && len(k) != ed25519.PrivateKeySize {
			t.Errorf("a key of %d bytes", len(k))
		}
	})
}
